"""A context model, and faults of form: each breaks a rule of ONNX's."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

import epctx_core as epctx


@pytest.fixture(scope="module")
def context_model(tmp_path_factory):
    """One EPContext node of the simulated QNN, and a node for the CPU EP behind it."""
    source = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[1, 2] x) => (float[1, 2] z, float[1, 2] w)
        <float[1, 2] one = {1, 1}> { y = Relu(x) z = Add(y, one) w = Shrink(z) }"""
    )
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    output = tmp_path_factory.mktemp("form") / "model_ctx.onnx"
    compiler = epctx.ModelCompiler(
        options, source.SerializeToString(), embed_compiled_data_into_model=True
    )
    compiler.compile_to_file(output)
    model = onnx.load(output)
    assert [node.op_type for node in model.graph.node] == ["EPContext", "Shrink"]
    return model


def read_a_name_that_nobody_gives(model):
    model.graph.node[1].input[0] = "nowhere"


def give_a_name_twice(model):
    model.graph.node[1].output[0] = model.graph.node[0].output[0]


def give_a_name_twice_in_one_node(model):
    model.graph.node[0].output.append(model.graph.node[0].output[0])


def give_the_name_of_an_input(model):
    model.graph.node[1].output[0] = "x"


def declare_an_input_twice(model):
    model.graph.input.append(model.graph.input[0])


def import_no_operators_of_the_node(model):
    kept = [opset for opset in model.opset_import if opset.domain != "com.microsoft"]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def say_a_key_twice(model):
    model.metadata_props.add(key="note", value="1")
    model.metadata_props.add(key="note", value="2")


def leave_an_initializer_without_a_name(model):
    model.graph.initializer.append(helper.make_tensor("", TensorProto.FLOAT, [1], [1]))


def call_a_function_that_reads_what_nobody_gives(model):
    nodes = [helper.make_node("Relu", ["nothing"], ["b"])]
    imports = [helper.make_opsetid("", 18)]
    model.functions.append(
        helper.make_function("own", "f", ["a"], ["b"], nodes, imports)
    )
    model.opset_import.append(helper.make_opsetid("own", 1))


def add_branches(model, then, otherwise="f0 = Neg(x)"):
    """Add an If behind the others, whose first branch has this text."""
    added = onnx.parser.parse_graph(
        f"""g (float[1, 2] x) => (float[1, 2] v) {{
            c = Constant <value = bool {{1}}> ()
            v = If(c) <then_branch = t () => (float[1, 2] t0) {{ {then} }},
                       else_branch = f () => (float[1, 2] f0) {{ {otherwise} }}>
        }}"""
    )
    model.graph.node.extend(added.node)
    model.graph.output.append(added.output[0])


def read_a_name_that_nobody_gives_in_a_branch(model):
    add_branches(model, "t0 = Neg(nowhere)")


def give_a_name_of_the_main_graph_in_a_branch(model):
    add_branches(model, "z = Neg(x) t0 = Neg(z)")


def give_a_name_twice_in_a_branch(model):
    add_branches(model, "t1 = Neg(x) t1 = Abs(x) t0 = Neg(t1)")


def leave_out_what_a_branch_is_to_give(model):
    add_branches(model, "t1 = Neg(x)")


def leave_the_output_of_a_branch_without_a_name(model):
    add_branches(model, "t0 = Neg(x)")
    model.graph.node[-1].attribute[0].g.output[0].name = ""


def leave_out_a_branch(model):
    add_branches(model, "t0 = Neg(x)")
    del model.graph.node[-1].attribute[1]


def leave_out_both_branches(model):
    add_branches(model, "t0 = Neg(x)")
    del model.graph.node[-1].attribute[:]


def say_a_number_for_a_branch(model):
    add_branches(model, "t0 = Neg(x)")
    branch = model.graph.node[-1].attribute[1]
    branch.CopyFrom(helper.make_attribute(branch.name, 1))


def come_from_a_later_onnx(model):
    model.ir_version = onnx.IR_VERSION + 1


def import_a_version_that_is_no_32_bit_number(model):
    model.opset_import.add(domain="nobody.reads", version=1 << 40)


def leave_an_input_without_an_element_type(model):
    model.graph.input[0].type.tensor_type.ClearField("elem_type")


def leave_an_operator_without_a_name(model):
    model.graph.node.append(helper.make_node("", ["z"], ["nothing"]))


def hold_less_text_than_the_shape_says(model):
    text = TensorProto(name="text", data_type=TensorProto.STRING, dims=[2])
    text.string_data.append(b"alone")
    model.graph.initializer.append(text)
    model.graph.output.append(
        helper.make_tensor_value_info("text", TensorProto.STRING, [2])
    )


FAULTS = [
    leave_out_both_branches,
    say_a_number_for_a_branch,
    read_a_name_that_nobody_gives_in_a_branch,
    give_a_name_of_the_main_graph_in_a_branch,
    give_a_name_twice_in_a_branch,
    leave_out_what_a_branch_is_to_give,
    leave_the_output_of_a_branch_without_a_name,
    leave_out_a_branch,
    read_a_name_that_nobody_gives,
    give_a_name_twice,
    give_a_name_twice_in_one_node,
    give_the_name_of_an_input,
    declare_an_input_twice,
    import_no_operators_of_the_node,
    say_a_key_twice,
    leave_an_initializer_without_a_name,
    call_a_function_that_reads_what_nobody_gives,
    come_from_a_later_onnx,
    import_a_version_that_is_no_32_bit_number,
    leave_an_input_without_an_element_type,
    leave_an_operator_without_a_name,
    hold_less_text_than_the_shape_says,
]
