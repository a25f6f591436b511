"""Functions of the onnxruntime that calls, by their names in its C API.

Tables of functions are read by position: onnxruntime only extends them at their ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

Address = int
"""Address of an object of onnxruntime's, which Python never looks into."""

_OF_API = {
    "CreateStatus": 0,
    "GetErrorCode": 1,
    "GetErrorMessage": 2,
    "RunOptionsGetRunTag": 45,
    "GetTensorMutableData": 51,
    "CastTypeInfoToTensorInfo": 55,
    "GetTensorElementType": 60,
    "GetDimensionsCount": 61,
    "GetDimensions": 62,
    "GetSymbolicDimensions": 63,
    "GetTensorTypeAndShape": 65,
    "GetAllocatorWithDefaultOptions": 78,
    "AllocatorFree": 76,
    "KernelContext_GetOutput": 91,
    "ReleaseStatus": 93,
    "ReleaseValue": 96,
    "ReleaseTensorTypeAndShapeInfo": 99,
    "ModelMetadataLookupCustomMetadataMap": 116,
    "ReleaseModelMetadata": 118,
    "GetStringTensorElementLength": 127,
    "GetStringTensorElement": 128,
    "CreateOpAttr": 211,
    "ReleaseOpAttr": 212,
    "ReadOpAttr": 272,
    "GetValueInfoName": 289,
    "GetValueInfoTypeInfo": 290,
    "GetModelEditorApi": 291,
    "CreateKeyValuePairs": 295,
    "AddKeyValuePair": 296,
    "GetKeyValuePairs": 298,
    "ReleaseKeyValuePairs": 300,
    "GetEpApi": 317,
    "GetTensorSizeInBytes": 318,
    "ValueInfo_GetInitializerValue": 326,
    "ValueInfo_GetExternalInitializerInfo": 327,
    "ValueInfo_IsConstantInitializer": 331,
    "ValueInfo_IsFromOuterScope": 332,
    "Graph_GetName": 333,
    "Graph_GetModelPath": 334,
    "Graph_GetOnnxIRVersion": 335,
    "Graph_GetNumOperatorSets": 336,
    "Graph_GetOperatorSets": 337,
    "Graph_GetNumInputs": 338,
    "Graph_GetInputs": 339,
    "Graph_GetNumOutputs": 340,
    "Graph_GetOutputs": 341,
    "Graph_GetNumInitializers": 342,
    "Graph_GetInitializers": 343,
    "Graph_GetNumNodes": 344,
    "Graph_GetNodes": 345,
    "Graph_GetParentNode": 346,
    "Node_GetName": 349,
    "Node_GetOperatorType": 350,
    "Node_GetDomain": 351,
    "Node_GetNumInputs": 353,
    "Node_GetInputs": 354,
    "Node_GetNumOutputs": 355,
    "Node_GetOutputs": 356,
    "Node_GetNumImplicitInputs": 357,
    "Node_GetImplicitInputs": 358,
    "Node_GetNumAttributes": 359,
    "Node_GetAttributes": 360,
    "OpAttr_GetTensorAttributeAsOrtValue": 362,
    "OpAttr_GetType": 363,
    "OpAttr_GetName": 364,
    "Node_GetNumSubgraphs": 365,
    "Node_GetSubgraphs": 366,
    "ReleaseExternalInitializerInfo": 369,
    "ExternalInitializerInfo_GetFilePath": 370,
    "ExternalInitializerInfo_GetFileOffset": 371,
    "GetSessionOptionsConfigEntries": 379,
    "Graph_GetModelMetadata": 387,
    "TensorTypeAndShape_HasShape": 390,
}
"""Positions in OrtApi."""

_OF_EP_API = {
    "CreateEpDevice": 0,
    "EpGraphSupportInfo_AddNodesToFuse": 2,
    "CreateHardwareDevice": 16,
}
"""Positions in OrtEpApi."""

_OF_MODEL_EDITOR = {"CreateNode": 6}
"""Positions in OrtModelEditorApi."""

_RESULTS: dict[str, Any] = {
    "CreateStatus": ctypes.c_void_p,
    "GetErrorCode": ctypes.c_int,
    "GetErrorMessage": ctypes.c_char_p,
    "GetEpApi": ctypes.c_void_p,
    "ExternalInitializerInfo_GetFilePath": ctypes.c_char_p,
    "ExternalInitializerInfo_GetFileOffset": ctypes.c_int64,
    "TensorTypeAndShape_HasShape": ctypes.c_bool,
    "GetModelEditorApi": ctypes.c_void_p,
    "CreateKeyValuePairs": None,
    "AddKeyValuePair": None,
    "GetKeyValuePairs": None,
}
"""Results that are no status; functions that release return nothing."""


class StatusError(Exception):
    """Failure of a function of onnxruntime.

    Attributes:
        code: its `OrtErrorCode`.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Onnxruntime:
    """Functions of one onnxruntime of this process, of which there may be several.

    A function that returns a status raises `StatusError` where it failed.

    Args:
        api: address of its `OrtApi`, of version 24 at least.
    """

    def __init__(self, api: Address) -> None:
        self.api = api
        self._functions: dict[str, Callable[..., Any]] = {}
        self._tables = [(_OF_API, api)]
        self._tables += [
            (_OF_EP_API, self.call("GetEpApi")),
            (_OF_MODEL_EDITOR, self.call("GetModelEditorApi")),
        ]

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function by its name; addresses, sizes and enumerators are integers.

        Raises:
            StatusError: the function failed.
        """
        if name not in self._functions:
            self._functions[name] = self._find(name)
        result = self._functions[name](
            *(
                ctypes.c_void_p(argument) if isinstance(argument, int) else argument
                for argument in arguments
            )
        )
        if name in _RESULTS or name.startswith("Release") or not result:
            return result

        code = self.call("GetErrorCode", result)
        message = self.call("GetErrorMessage", result)
        self.call("ReleaseStatus", result)
        raise StatusError(code, message.decode(errors="replace"))

    def get(
        self,
        name: str,
        *arguments: Any,
        result: Any = ctypes.c_void_p,
    ) -> Any:
        """Return what a function stores behind its last argument.

        Raises:
            StatusError: the function failed.
        """
        out = result()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def get_number(self, name: str, *arguments: Any) -> int:
        """Return a size or an enumerator that a function stores behind its last
        argument.
        """
        number: int = self.get(name, *arguments, result=ctypes.c_size_t)
        return number

    def get_text(self, name: str, *arguments: Any) -> str:
        """Return a text that a function stores behind its last argument."""
        text: bytes | None = self.get(name, *arguments, result=ctypes.c_char_p)
        return (text or b"").decode(errors="surrogateescape")

    def list_members(
        self,
        owner: str,
        members: str,
        address: Address,
    ) -> list[Address]:
        """Return the members of a graph or a node, such as `Inputs` of a `Node`; 0 for
        one that is left out.
        """
        count = self.get_number(f"{owner}_GetNum{members}", address)
        found = (ctypes.c_void_p * count)()
        if count:
            self.call(f"{owner}_Get{members}", address, found, count)
        return [each or 0 for each in found]

    def make_pairs(self, pairs: Mapping[str, str]) -> Address:
        """Return an `OrtKeyValuePairs`, which the caller releases."""
        made: Address = self.get("CreateKeyValuePairs")
        for key, value in pairs.items():
            self.call("AddKeyValuePair", made, key.encode(), value.encode())
        return made

    def make_status(self, code: int, message: str) -> Address:
        """Return a status, which the caller hands to onnxruntime."""
        status: int = self.call(
            "CreateStatus", code, message.encode(errors="backslashreplace")
        )
        return status

    def _find(self, name: str) -> Callable[..., Any]:
        for positions, table in self._tables:
            if name in positions:
                return self._make(table, positions[name], name)
        raise KeyError(name)

    @staticmethod
    def _make(
        table: Address,
        position: int,
        name: str,
    ) -> Callable[..., Any]:
        address = ctypes.c_void_p.from_address(
            table + position * ctypes.sizeof(ctypes.c_void_p)
        ).value
        result = None if name.startswith("Release") else ctypes.c_void_p
        # Python's lock is kept: these functions are short, and some are called for
        # each node of a graph.
        function = ctypes.PYFUNCTYPE(_RESULTS.get(name, result))
        return function(address or 0)


@cache
def find_onnxruntime(api: Address) -> Onnxruntime:
    """Return the functions of the onnxruntime with this `OrtApi`."""
    return Onnxruntime(api)


def make_texts(texts: Iterable[str]) -> Any:
    """Return texts as an array of C's."""
    encoded = [text.encode(errors="surrogateescape") for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def read_texts(address: Address, count: int) -> list[str]:
    """Return the texts of an array of C's."""
    found = (ctypes.c_char_p * count).from_address(address)
    return [(text or b"").decode(errors="surrogateescape") for text in found]


def store_addresses(place: Address, addresses: Sequence[Address]) -> None:
    """Store addresses in an array of C's."""
    array = (ctypes.c_void_p * len(addresses))(*addresses)
    ctypes.memmove(place, array, ctypes.sizeof(array))


def read_addresses(address: Address, count: int) -> list[Address]:
    """Return the addresses in an array of C's."""
    return [each or 0 for each in (ctypes.c_void_p * count).from_address(address)]
