"""Check of the EPs of onnxruntime: of a plugin library, of onnxruntime itself, or of an
installed plugin of epctx.

Each case runs in onnxruntime with the EP, and behind the hooks of epctx: in a session,
over a context model in files and over one in bytes. A case ends as PASS only if
onnxruntime says that the EP ran a part of it.
"""
