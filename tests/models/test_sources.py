"""Finding and loading models: small ones of the real classes, saved in the real formats, and the one real alias."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pinprompt.errors import ModelError
from pinprompt.models import loading, sources

WORDS = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "a", "great", "terrible", "film", "it", "was"]
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        mask_token="<mask>",
    ).save_pretrained(folder)


def save(folder: Path, model_class: str, config_class: str, **changes: Any) -> Path:
    torch.manual_seed(changes.pop("seed", 0))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, config_class)(vocab_size=len(WORDS), pad_token_id=3, **sizes, **changes)
    getattr(transformers, model_class)(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A cache of its own for every test but the one that loads the real model."""
    if not request.node.name.startswith("test_smollm2"):
        monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def causal(tmp_path: Path) -> Path:
    return save(tmp_path / "causal", "LlamaForCausalLM", "LlamaConfig")


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    return save(tmp_path / "masked", "RobertaForMaskedLM", "RobertaConfig")


def test_each_loader_returns_a_frozen_model_in_full_precision(tmp_path: Path, causal: Path, masked: Path) -> None:
    classifier = save(tmp_path / "classifier", "BertForSequenceClassification", "BertConfig", num_labels=3)
    for load, folder, name in (
        (loading.load_causal_lm, causal, "LlamaForCausalLM"),
        (loading.load_masked_lm, masked, "RobertaForMaskedLM"),
        (loading.load_sequence_classifier, classifier, "BertForSequenceClassification"),
        (loading.load_encoder, masked, "RobertaModel"),
    ):
        model, tokenizer = load(str(folder))
        assert type(model).__name__ == name
        assert not model.training
        assert not any(weight.requires_grad for weight in model.parameters())
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        assert model.config._attn_implementation == "sdpa"
        assert tokenizer("it was great")["input_ids"] == [9, 10, 6]


def test_half_precision_checkpoints_are_widened_on_a_cpu_unless_asked_otherwise(tmp_path: Path, causal: Path) -> None:
    transformers.AutoModelForCausalLM.from_pretrained(causal, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    save_tokenizer(tmp_path / "half")
    assert loading.load_causal_lm(str(tmp_path / "half"))[0].dtype == torch.float32
    assert loading.load_causal_lm(str(tmp_path / "half"), precision="bf16")[0].dtype == torch.bfloat16


def test_kind_comes_from_the_config_alone(tmp_path: Path) -> None:
    for architecture, kind in {
        "RobertaForMaskedLM": "masked",
        "BertForPreTraining": "masked",
        "OPTForCausalLM": "causal",
        "GPT2LMHeadModel": "causal",
        "BertForSequenceClassification": "classifier",
        "BertModel": "encoder",
        "T5ForConditionalGeneration": "seq2seq",
    }.items():
        (tmp_path / architecture).mkdir()
        (tmp_path / architecture / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        assert sources.kind_of(str(tmp_path / architecture)) == kind
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "config.json").write_text('{"architectures": ["CLIPModel"], "model_type": "clip"}')
    assert sources.kind_of(str(tmp_path / "clip")) == "clip"
    assert sources.kind_of("smollm2") == "causal"
    assert sources.kind_of("minilm") == "encoder"


def test_a_missing_head_is_an_error(masked: Path, causal: Path) -> None:
    with pytest.raises(ModelError, match=r"SequenceClassification.*random.*RobertaForMaskedLM"):
        loading.load_sequence_classifier(str(masked))
    with pytest.raises(ModelError, match="cannot be loaded"):
        loading.load_masked_lm(str(causal))


def test_the_revision_follows_the_weights(tmp_path: Path, causal: Path) -> None:
    first = sources.resolve(str(causal))
    assert (first.kind, first.path) == ("folder", causal)
    shutil.copytree(causal, tmp_path / "copy")
    assert sources.resolve(str(tmp_path / "copy")).revision == first.revision
    other = save(tmp_path / "other", "LlamaForCausalLM", "LlamaConfig", seed=1)
    assert sources.resolve(str(other)).revision != first.revision


def test_loading_is_silent(causal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loading.load_causal_lm(str(causal))
    assert capfd.readouterr() == ("", "")


class RunsCode:
    """Unpickling this touches a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.proof,))


def test_a_pickle_that_would_run_code_is_refused_and_plain_pickled_weights_are_read(
    tmp_path: Path, causal: Path
) -> None:
    model, _ = loading.load_causal_lm(str(causal))
    (causal / "model.safetensors").unlink()
    torch.save(model.state_dict(), causal / "pytorch_model.bin")
    again, _ = loading.load_causal_lm(str(causal))
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)

    proof = tmp_path / "proof"

    torch.save({"lm_head.weight": RunsCode(proof)}, causal / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        loading.load_causal_lm(str(causal))
    assert not proof.exists()


def test_code_that_a_model_brings_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "own-code"
    folder.mkdir()
    proof = tmp_path / "proof"
    (folder / "code.py").write_text(f"open({str(proof)!r}, 'w').close()\nclass C: pass\n")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.C"}}
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(folder)
    with pytest.raises(ModelError):
        loading.load_causal_lm(str(folder))
    assert not proof.exists()


def test_broken_folders_give_error_messages(tmp_path: Path, causal: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no config.json.*alias 'smollm2'"):
        sources.resolve(str(tmp_path / "empty"))
    weights = causal / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ModelError, match="cannot be loaded"):
        loading.load_causal_lm(str(causal))
    weights.unlink()
    with pytest.raises(ModelError, match=r"model.safetensors"):
        loading.load_causal_lm(str(causal))
    (causal / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config.json.*cannot be read"):
        sources.kind_of(str(causal))
    (causal / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="is not a JSON object"):
        sources.resolve(str(causal))


def test_an_unknown_device_gives_an_error_message(causal: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ModelError, match=r"device 'cuda'.*cpu"):
        loading.load_causal_lm(str(causal), device="cuda")


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "missing.gguf", "a/b/c", "..", "", "what is this"])
def test_names_that_are_no_hub_id_never_ask_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "unreachable", lambda *_: pytest.fail("asked"))
    with pytest.raises(ModelError):
        sources.resolve(name)


def test_no_hub_says_what_was_asked_why_not_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"'facebook/opt-125m'.*HF_HUB_OFFLINE is set.*local folder.*'smollm2'"):
        loading.load_causal_lm("facebook/opt-125m")
    with pytest.raises(ModelError, match="did you mean 'smollm2'"):
        sources.resolve("smolm2")
    with pytest.raises(ModelError, match="alias for data"):
        sources.resolve("rotten-tomatoes")
    with pytest.raises(ModelError, match="did you mean 'minilm'"):
        sources.fetch("mini-lm")


def test_of_an_unreachable_hub_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    look, local = huggingface_hub.hf_hub_download, []

    def watched(*given: Any, **named: Any) -> str:
        local.append(named.get("local_files_only", False))
        return look(*given, **named)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", watched)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"127.0.0.1:9 (cannot be reached|did not answer)"):
        sources.resolve("some-owner/some-model")
    assert local == [True]  # only the cache was looked at: the client's own tries take minutes


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:  # takes connections, says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        said = sources.unreachable(0.5) or ""
        assert "127.0.0.1" in said
        assert "timed out" in said or "did not answer within 0.5 s" in said
        silent.accept()[0].close()  # it was asked


def test_a_hub_model_in_the_cache_needs_no_hub(tmp_path: Path, causal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(causal, folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    found = sources.resolve("owner/tiny")
    assert (found.kind, found.revision) == ("hub", commit)
    assert sources.kind_of("owner/tiny") == "causal"
    rows = {row["name"]: row for row in sources.catalogue_of_models()}
    assert rows["smollm2"]["cached"] is False
    assert rows["smollm2"]["licence"] == "Apache-2.0"


def write_tiny_gguf(path: Path, causal: Path) -> None:
    """The small model as a GGUF file of full-precision tensors, as llama.cpp names them."""
    from gguf import GGUFWriter
    from safetensors.torch import load_file

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*WORDS[:5], "a", "t", "i", "w", "it", "wa"])
    writer.add_token_types([3] * 5 + [1] * 6)
    writer.add_token_merges(["i t", "w a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
        "model.layers.0.self_attn.q_proj": "blk.0.attn_q",
        "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
        "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
        "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
    }
    for name, tensor in load_file(causal / "model.safetensors").items():
        writer.add_tensor(names[name.removesuffix(".weight")] + ".weight", tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_users_gguf_is_dequantised_once(
    tmp_path: Path, causal: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, causal)
    model, _ = loading.load_causal_lm(str(file))
    original, _ = loading.load_causal_lm(str(causal))
    assert torch.equal(model.lm_head.weight, original.lm_head.weight)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sources, "convert", lambda *_: pytest.fail("converted again"))
    moved = shutil.copy(file, tmp_path / "same bytes.gguf")
    assert sources.resolve(str(moved)) == sources.Source(
        str(moved), "gguf", sources.resolve(str(file)).path, sources.resolve(str(file)).revision
    )


def test_a_broken_gguf_gives_an_error_and_leaves_no_files(tmp_path: Path, causal: Path) -> None:
    file = tmp_path / "torn.gguf"
    file.write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(ModelError, match="not a GGUF file"):
        sources.resolve(str(file))
    write_tiny_gguf(file, causal)
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(ModelError, match="cannot be read as a language model"):
        sources.resolve(str(file))
    assert not list((tmp_path / "home" / "models").glob("*"))
    assert not list((tmp_path / "home" / "tmp").glob("*"))
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"not a \.gguf"):
        sources.resolve(str(tmp_path / "weights.bin"))


def test_smollm2_loads_from_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sources.fetch("smollm2")
    monkeypatch.setattr(sources, "convert", lambda *_: pytest.fail("it was dequantised again"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("pip was asked"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))
    assert sources.fetch("smollm2") == folder
    assert not list(folder.glob("*.gguf"))
    model, tokenizer = loading.load_causal_lm("smollm2")
    assert tuple(model.lm_head.weight.shape) == (49152, 576)
    with torch.no_grad():
        logits = model(**tokenizer("The capital of France is", return_tensors="pt")).logits[0, -1]
    assert tokenizer.decode(logits.argmax()).strip() == "Paris"


def test_listing_imports_nothing_heavy() -> None:
    program = (
        "import sys; from pinprompt.models.sources import catalogue_of_models; catalogue_of_models();"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PATH": "", "HOME": "/nonexistent"},
    )
    assert done.stdout == "[]\n"
