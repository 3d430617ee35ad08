"""From a checked configuration to one rank of a real pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from asyncpp.model.config import MoEConfig
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.pipeline.evaluation import Evaluation
from asyncpp.pipeline.interpreter import Interpreter
from asyncpp.pipeline.mesh import Mesh, Position
from asyncpp.pipeline.p2p import PeerLinks
from asyncpp.pipeline.part import Part, PartState
from asyncpp.pipeline.partition import indices_by_part
from asyncpp.pipeline.report import PartColumns, Rows
from asyncpp.pipeline.runtime import Runtime, Watcher
from asyncpp.pipeline.segments import Segment, segments_of
from asyncpp.pipeline.settlement import Settler
from asyncpp.pipeline.timers import Timers
from asyncpp.pipeline.versioned_modules import VersionedModules
from asyncpp.schedule.action import ACTIVATION, GRADIENT, Payload
from asyncpp.schedule.builders import BUILDERS
from asyncpp.trainer.saving import Start
from asyncpp.trainer.setup import (
    WeightsOf,
    build_clipping,
    build_compute,
    build_lr_factor,
    build_module,
    build_state,
    initial_weights_of,
)

if TYPE_CHECKING:
    from asyncpp.config import Config

ReadTokens = Callable[[int, int], Tensor]


def build_runtime(
    config: Config,
    mesh: Mesh,
    read: ReadTokens,
    validation: Tensor,
    start: Start | None = None,
    watchers: Sequence[Watcher] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Runtime:
    """This rank's parts of the model, with their first weights, and its connections.

    read: tokens of (batch, micro-batch) of this replica, int64 (rows, sequence_length + 1), on the rank's device.
    validation: of the held-out sequences, likewise. start: where the run goes on, None at its first batch; whoever has
    a checkpoint loads it into the states. stop: whether this rank was asked to stop.
    """
    start = start or Start(launch="")
    pipeline, trainer = config.pipeline, config.trainer
    parts = _build_parts(config, mesh.position, initial_weights_of(config, validation.device))
    segments = segments_of(pipeline, config.correction, trainer.num_micro_batches, trainer.num_steps, start.step)
    hidden = _hidden(config, mesh.position, parts)
    num_messages = _num_messages(config, mesh, start.step)
    links = PeerLinks(mesh, hidden, num_messages, _buffer_size(segments), pipeline.timeout_s)
    timers, compute, lr_factor = Timers(), build_compute(config), build_lr_factor(config)
    settler = _build_settler(config, mesh, parts, timers, start, stop)
    interpreter = Interpreter(
        parts,
        num_micro_batches=trainer.num_micro_batches,
        links=links,
        read=read,
        settle=settler,
        lr_factor=lr_factor,
        compute=compute,
        recompute=pipeline.recompute,
        timers=timers,
        exchange=mesh.exchange,
    )
    evaluation = Evaluation(parts, mesh, validation, trainer.eval_batch_size, hidden, compute, pipeline.timeout_s)
    num_tensors = len(parameter_infos(config.model))
    return Runtime(mesh, segments, interpreter, links, settler, evaluation, watchers, lr_factor, num_tensors)


def _build_parts(config: Config, position: Position, weights_of: WeightsOf) -> list[Part]:
    numbers = range(config.profile.num_parts)[position.stage :: position.num_stages]
    return [_build_part(config, part, position.replica, weights_of) for part in numbers]


def _build_part(config: Config, part: int, replica: int, weights_of: WeightsOf) -> Part:
    is_first, is_last = part == 0, part == config.profile.num_parts - 1
    state = build_state(config, part, weights_of, replica)
    module = build_module(config, config.layers[part], first=is_first, last=is_last)
    modules = VersionedModules(module, _positions(config, module, state), state.versions)
    return Part(state, modules, is_first, is_last)


def _positions(config: Config, module: nn.Module, state: PartState) -> dict[str, int]:
    """Where each of the module's parameters is in the part's lists."""
    infos, aliases = parameter_infos(config.model), tied_aliases(config.model)
    place = {infos[index].name: position for position, index in enumerate(state.indices)}
    return {name: place[aliases.get(name, name)] for name, _ in module.named_parameters(remove_duplicate=False)}


def _hidden(config: Config, position: Position, parts: Sequence[Part]) -> Tensor:
    """Like a micro-batch's activations, (rows, sequence_length, hidden_size), without values."""
    trainer = config.trainer
    rows = trainer.batch_size // (position.data_parallel * trainer.num_micro_batches)
    weight = parts[0].state.versions.current[0]
    return weight.new_empty(rows, config.data.sequence_length, config.model.hidden_size)


def _build_settler(
    config: Config, mesh: Mesh, parts: Sequence[Part], timers: Timers, start: Start, stop: Callable[[], bool]
) -> Settler:
    tied = tied_aliases(config.model).values()
    infos = enumerate(parameter_infos(config.model))
    return Settler(
        parts,
        mesh,
        rows=_rows(config, mesh),
        clipping=build_clipping(config),
        timers=timers,
        tied_index=next((index for index, info in infos if info.name in tied), None),
        stop=stop,
        last_norms=start.last_norms,
    )


def _buffer_size(segments: Sequence[Segment]) -> int:
    return max((BUILDERS[schedule].buffer_size(shape) for schedule, shape in segments), default=1)


def _num_messages(config: Config, mesh: Mesh, first_batch: int) -> dict[tuple[Payload, int], int]:
    """How many messages this stage will get, by (payload, peer)."""
    position, num_parts = mesh.position, config.profile.num_parts
    num_messages = (config.trainer.num_steps - first_batch) * config.trainer.num_micro_batches
    counts: dict[tuple[Payload, int], int] = {}
    if position.num_stages > 1:
        for part in range(num_parts)[position.stage :: position.num_stages]:
            channels = [(ACTIVATION, part - 1)] if part > 0 else []
            channels += [(GRADIENT, part + 1)] if part < num_parts - 1 else []
            for payload, peer in channels:
                key = payload, peer % position.num_stages
                counts[key] = counts.get(key, 0) + num_messages
    return counts


def _rows(config: Config, mesh: Mesh) -> Rows:
    model = config.model
    infos = parameter_infos(model)
    num_experts = model.num_experts if isinstance(model, MoEConfig) else 0
    owned = indices_by_part(infos, config.layers, tied_aliases(model))
    both = zip(owned, config.layers, strict=True)
    parts = [PartColumns(indices, len(layers) * num_experts) for indices, layers in both]
    return Rows(mesh.position, parts, num_experts)
