"""From a checked configuration to one rank of a real pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from asyncpp.model.config import MoEConfig
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.pipeline.clipping import Norms
from asyncpp.pipeline.evaluation import Evaluation
from asyncpp.pipeline.interpreter import Interpreter, Part
from asyncpp.pipeline.mesh import Mesh
from asyncpp.pipeline.p2p import PeerLinks
from asyncpp.pipeline.partition import indices_by_part
from asyncpp.pipeline.replicas import Replicas
from asyncpp.pipeline.report import Rows, Share
from asyncpp.pipeline.runtime import Runtime, Segment, Watcher
from asyncpp.pipeline.settlement import Settler
from asyncpp.pipeline.stage import StageState
from asyncpp.pipeline.timers import Timers
from asyncpp.schedule.action import ACTIVATION, GRADIENT, Payload, Shape
from asyncpp.schedule.builders import BUILDERS
from asyncpp.trainer.setup import (
    WeightsOf,
    build_autocast,
    build_clipping,
    build_module,
    build_state,
    masked_end_of_document,
)

if TYPE_CHECKING:
    from asyncpp.config import Config

ReadTokens = Callable[[int, int], Tensor]


def build_runtime(
    config: Config,
    mesh: Mesh,
    weights_of: WeightsOf,
    read: ReadTokens,
    validation: Tensor,
    watchers: Sequence[Watcher] = (),
    first_batch: int = 0,
    last_norms: dict[int, Norms] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Runtime:
    """This rank's share of the training state before the first update, and its connections.

    read: tokens of (batch, micro-batch) of this replica, int64 (rows, sequence_length + 1), on the rank's device.
    validation: of the held-out sequences, likewise. first_batch, last_norms: where the run goes on from a checkpoint,
    with the norms of the batch before. stop: whether this rank was asked to stop.
    """
    pipeline, trainer, position = config.pipeline, config.trainer, mesh.position
    timers, autocast, end_of_document = Timers(), build_autocast(config), masked_end_of_document(config)
    numbers = range(config.profile.num_stages)[position.stage :: position.num_stages]
    parts = [_build_part(config, part, position.replica, weights_of) for part in numbers]
    segments = segments_of(config, first_batch)
    rows_per_micro_batch = trainer.batch_size // (position.data_parallel * trainer.num_micro_batches)
    like = (
        parts[0]
        .state.versions.current[0]
        .new_empty(rows_per_micro_batch, config.data.sequence_length, config.model.hidden_size)
    )
    links = PeerLinks(mesh, like, _num_messages(config, mesh, first_batch), _buffer_size(segments), pipeline.timeout_s)
    tied = tied_aliases(config.model)
    infos = parameter_infos(config.model)
    settler = Settler(
        parts,
        mesh,
        rows=_rows(config, mesh),
        clipping=build_clipping(config),
        timers=timers,
        tied_index=next((index for index, info in enumerate(infos) if info.name in tied.values()), None),
        stop=stop,
        last_norms=last_norms or {},
    )

    def lr_factor(batch: int) -> float:
        return config.lr_schedule.factor(batch, trainer.num_steps)

    interpreter = Interpreter(
        parts,
        num_micro_batches=trainer.num_micro_batches,
        links=links,
        read=read,
        settle=settler,
        lr_factor=lr_factor,
        autocast=autocast,
        recompute=pipeline.recompute,
        end_of_document=end_of_document,
        timers=timers,
        share=mesh.exchange,
    )
    evaluation = Evaluation(
        parts, mesh, validation, trainer.eval_batch_size, like, autocast, end_of_document, pipeline.timeout_s
    )
    return Runtime(mesh, segments, interpreter, links, settler, evaluation, watchers, lr_factor, len(infos))


def _build_part(config: Config, part: int, replica: int, weights_of: WeightsOf) -> Part:
    is_first, is_last = part == 0, part == config.profile.num_stages - 1
    state = build_state(config, part, weights_of, replica)
    module = build_module(config, config.layers[part], first=is_first, last=is_last)
    return Part(state, Replicas(module, _positions(config, module, state), state.versions), is_first, is_last)


def _positions(config: Config, module: nn.Module, state: StageState) -> dict[str, int]:
    """Where each of the module's parameters is in the part's lists."""
    infos, aliases = parameter_infos(config.model), tied_aliases(config.model)
    place = {infos[index].name: position for position, index in enumerate(state.indices)}
    return {name: place[aliases.get(name, name)] for name, _ in module.named_parameters(remove_duplicate=False)}


def segments_of(config: Config, first_batch: int = 0) -> list[Segment]:
    """The batches from ``first_batch`` on. Those that a correction wants without delay run by one that flushes."""
    pipeline, trainer = config.pipeline, config.trainer
    chunks = BUILDERS[pipeline.schedule].chunks_of(pipeline.num_chunks)
    delayed = max(config.profile.delays) > 0
    num_sync = config.correction.num_sync_steps(trainer.num_steps) if delayed else 0
    switch = max(first_batch, num_sync)
    cuts = [("one_f_one_b", first_batch, num_sync), (pipeline.schedule, switch, trainer.num_steps)]
    return [
        Segment(
            schedule,
            Shape(
                num_stages=pipeline.num_stages,
                num_micro_batches=trainer.num_micro_batches,
                num_batches=end - start,
                num_chunks=chunks,
                first_batch=start,
            ),
        )
        for schedule, start, end in cuts
        if end > start
    ]


def _buffer_size(segments: Sequence[Segment]) -> int:
    return max((BUILDERS[schedule].buffer_size(shape) for schedule, shape in segments), default=1)


def _num_messages(config: Config, mesh: Mesh, first_batch: int) -> dict[tuple[Payload, int], int]:
    """How many messages this stage will get, by (payload, peer)."""
    position, num_parts = mesh.position, config.profile.num_stages
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
    shares = [Share(indices, len(layers) * num_experts) for indices, layers in zip(owned, config.layers, strict=True)]
    return Rows(mesh.position, shares, num_experts)
