import pytest

from executors import registry
from executors.contract import ConfigError, ExecutorConfig, ExecutorType
from executors.testing.fakes.echo import EchoExecutor, EchoFactory


def test_built_in_and_dotted_names() -> None:
    assert isinstance(registry.create(ExecutorConfig("echo")), EchoExecutor)
    assert isinstance(registry.factory("executors.testing.fakes.echo:EchoFactory"), EchoFactory)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such", "unknown executor 'no_such'; known: .*echo"),
        ("no.such.module:Factory", "cannot be imported"),
        ("executors.testing.fakes.echo:NoSuch", "cannot be imported"),
        ("collections:Counter", "not a ModelExecutorFactory"),
    ],
)
def test_bad_names_are_config_errors(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.create(ExecutorConfig(name))


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", {})
    mine = EchoFactory()
    registry.register_factory("mine", mine)
    assert registry.factory("mine") is mine
    for taken in ("mine", "echo"):
        with pytest.raises(ConfigError, match="registered already"):
            registry.register_factory(taken, EchoFactory())


async def test_registry_of_live_executors() -> None:
    live = registry.ExecutorRegistry()
    executor = registry.create(ExecutorConfig("echo"))
    live.register("b", executor)
    live.register("a", registry.create(ExecutorConfig("paged_fake")))
    assert live.list_names() == ["a", "b"]
    assert live.get("b") is executor and live.get("c") is None
    assert set(live.get_metrics()) == {"a", "b"}
    with pytest.raises(ConfigError, match="registered already"):
        live.register("a", executor)
    assert live.remove("b") is executor and live.remove("b") is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ExecutorConfig("echo", executor_type=ExecutorType.TENSOR_PARALLEL), "executor_type TensorParallel"),
        (ExecutorConfig("echo", options={"num_blocks": 3}), "options.num_blocks is unknown"),
        (ExecutorConfig("echo", options={"native": 1}), "options.native"),
        (ExecutorConfig("echo", options={"vocab_size": True}), "options.vocab_size"),
        (ExecutorConfig("echo", options={"vocab_size": 3}), "at least 16"),
        (ExecutorConfig("echo", options={"fail": "explode@step=1"}), "options.fail"),
        (ExecutorConfig("paged_fake", options={"num_blocks": 0}), "too small for one block"),
    ],
)
def test_fakes_refuse_bad_configurations(config: ExecutorConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.create(config)
