"""Every metric of each role: its name, its type, its labels and what it means.

Invariant: a metric is named here (or in exposing, where every role has it) once and nowhere else,
and docs/metrics.md lists all of them, so that a dashboard never depends on a string in some module.
"""

from __future__ import annotations

from typing import Final

from headgate.metrics.exposing import Kind, Metrics, NodeMetrics, Told


class IngestMetrics(NodeMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.appends = self._counter(
            "headgate_appends_total", "Events appended to the log.", "topic"
        )
        self.produce_latency = self._histogram(
            "headgate_produce_seconds", "Time from a produce request to its answer."
        )
        self.produce_errors = self._counter(
            "headgate_produce_errors_total", "Events, or whole requests, that were refused.", "code"
        )
        self.waiting = self._told(
            "gauge", "headgate_waiting_events", "Events of produce requests under way."
        )
        self.waiting_bytes = self._told(
            "gauge",
            "headgate_waiting_request_bytes",
            "Bytes of requests that arrive or are under way.",
        )
        self.head = self._told(
            "gauge", "headgate_log_head", "Seq of the last record.", "topic", "partition"
        )


class GatewayMetrics(NodeMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.subscribers = self._told(
            "gauge", "headgate_subscribers", "Subscribers that are connected."
        )
        self.received = self._told(
            "counter",
            "headgate_deliveries_received_total",
            "Events that lanes delivered, by the verdict they got.",
            "verdict",
        )
        self.sent = self._told(
            "counter", "headgate_deliveries_sent_total", "Events sent to subscribers."
        )
        self.replayed = self._told(
            "counter",
            "headgate_replayed_total",
            "Records read from the log again, for subscribers that resumed or were behind.",
        )
        self.waiting = self._told(
            "gauge", "headgate_waiting", "Events that wait for subscribers in memory."
        )
        self.waiting_bytes = self._told(
            "gauge", "headgate_waiting_bytes", "Bytes that wait for subscribers in memory."
        )
        self.passed_on_bytes = self._told(
            "gauge",
            "headgate_waiting_request_bytes",
            "Bytes of requests that arrive or are under way.",
        )
        self.unacknowledged = self._told(
            "gauge",
            "headgate_unacknowledged",
            "Positions between the last event sent and the last acknowledged one.",
        )
        self.repeats_dropped = self._told(
            "counter",
            "headgate_repeats_dropped_total",
            "Deliveries dropped because their event was delivered before.",
        )
        self.remembered = self._told(
            "gauge",
            "headgate_dedup_cache_size",
            "Remembered events, and redeliveries with the subscriptions that had them.",
        )
        self.resyncs = self._told(
            "counter",
            "headgate_resyncs_total",
            "Times a subscriber was told that records are left out.",
            "reason",
        )
        self.dropped = self._told(
            "counter", "headgate_dropped_total", "Events left out for slow subscribers."
        )
        self.adoption_wait = self._histogram(
            "headgate_adoption_wait_seconds",
            "Wait of a subscriber until every lane had adopted its subscription.",
        )


class RouterMetrics(NodeMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.sources = self._told(
            "gauge", "headgate_source_partitions", "Source partitions assigned to this router."
        )
        self.lanes = self._told("gauge", "headgate_planned_lanes", "Lanes of the open window.")
        self.window = self._told("gauge", "headgate_window", "Number of the last planned window.")
        self.windows = self._counter(
            "headgate_windows_ended_total", "Windows that returned their tallies."
        )
        self.window_latency = self._histogram(
            "headgate_window_change_seconds",
            "Time from the tallies of one window to the lanes of the next.",
        )
        self.restarts = self._counter(
            "headgate_query_restarts_total", "Times the streaming query was started again."
        )
        self.spark_batches = self._counter(
            "headgate_spark_batches_total", "Micro-batches that Spark reported progress of."
        )
        self.spark_rows = self._counter(
            "headgate_spark_input_rows_total", "Rows Spark read: tallies, not events."
        )
        self.spark_batch = self._told(
            "gauge", "headgate_spark_batch_seconds", "Duration of the last micro-batch."
        )
        self.spark_phase = self._told(
            "gauge",
            "headgate_spark_phase_seconds",
            "Duration of each phase of the last micro-batch, as Spark names them.",
            "phase",
        )
        self.spark_trigger = self._told(
            "gauge", "headgate_spark_trigger_time_seconds", "When the last micro-batch began."
        )


class CoordinatorMetrics(Metrics):
    """The cluster as a whole, and what lanes report, from the coordinator that leads; one that
    stands by shows only its own state."""

    def __init__(self) -> None:
        super().__init__()
        self.leads = self._told("gauge", "headgate_leads", "1 where this coordinator leads.")
        self.failed_terms = self._told(
            "counter",
            "headgate_terms_failed_total",
            "Times this coordinator led and ended by an error, to begin anew.",
        )
        self.cluster: list[Told] = []
        """The metrics that show nothing at a coordinator that doesn't lead."""
        self._describe_cluster()
        self._describe_partitions()
        self._describe_lanes()
        self._describe_gateways()
        self._describe_connectors()

    def _of_cluster(self, kind: Kind, name: str, text: str, *labels: str) -> Told:
        self.cluster.append(told := self._told(kind, name, text, *labels))
        return told

    def _describe_cluster(self) -> None:
        told = self._of_cluster
        self.nodes = told("gauge", "headgate_nodes", "Nodes by role and state.", "role", "state")
        self.clients = told("gauge", "headgate_clients", "Clients that follow the topology.")
        self.subscriptions = told("gauge", "headgate_subscriptions", "Subscriptions in all.")
        self.generation = told("gauge", "headgate_generation", "Generation of the topology.")
        self.moves = told("gauge", "headgate_moves", "Partitions that change hands.")
        self.letters = told(
            "gauge", "headgate_letters", "Parked and dead letters there are.", "gateway", "state"
        )
        self.letters_age = told(
            "gauge",
            "headgate_letters_age_seconds",
            "Age of the oldest parked and dead letter.",
            "gateway",
            "state",
        )
        self.letters_up = told(
            "gauge", "headgate_letters_store_up", "1 while the store of letters answers, else 0."
        )

    def _describe_partitions(self) -> None:
        told, of = self._of_cluster, ("topic", "partition")
        self.head = told("gauge", "headgate_partition_head", "Seq of the last record.", *of)
        self.settled = told(
            "gauge", "headgate_partition_settled", "Seq up to which all is settled.", *of
        )
        self.lag = told("gauge", "headgate_partition_lag", "Records that are not settled.", *of)
        self.lag_seconds = told(
            "gauge", "headgate_partition_lag_seconds", "Age of the oldest unsettled record.", *of
        )
        self.lag_known = told(
            "gauge",
            "headgate_partition_lag_known",
            "1 where that age is known, 0 where it is at least that.",
            *of,
        )
        self.rate = told("gauge", "headgate_partition_rate", "Events appended per second.", *of)
        self.partition_health = told(
            "gauge",
            "headgate_partition_health",
            "1 for the status of a partition (healthy, lagging, stale, failed), 0 for the others.",
            *of,
            "status",
        )
        self.partition_restarts = told(
            "counter",
            "headgate_partition_restarts_total",
            "Times a partition was read anew because the lane that read it was lost.",
            *of,
        )
        self.outcomes = told(
            "counter",
            "headgate_settled_total",
            "Records by what settled them; kept with the positions, so they outlive restarts.",
            "topic",
            "outcome",
        )

    def _describe_lanes(self) -> None:
        told, of = self._of_cluster, "router"
        self.lanes = told("gauge", "headgate_lanes", "Lanes that are connected.", of)
        self.lane_cpu = told("gauge", "headgate_lane_cpu", "Cores that the lanes use.", of)
        self.read = told("counter", "headgate_records_read_total", "Records read by lanes.", of)
        self.routed = told(
            "counter",
            "headgate_events_routed_total",
            "Deliveries that matched records were routed to, one per record and gateway.",
            of,
        )
        self.routing = told(
            "histogram",
            "headgate_routing_seconds",
            "Time from a record to its acknowledgement by a gateway.",
            of,
        )
        self.filter_errors = told(
            "counter", "headgate_filter_errors_total", "Filters that failed on a record.", of
        )
        self.saves = told(
            "counter", "headgate_checkpoints_saved_total", "Positions that were saved.", of
        )
        self.save_errors = told(
            "counter", "headgate_checkpoint_errors_total", "Saves that failed; tried again.", of
        )
        self.saving = told(
            "histogram", "headgate_checkpoint_seconds", "Time to save a position.", of
        )
        self.gaps = told("counter", "headgate_gaps_detected_total", "Gaps in partitions.", of)

    def _describe_gateways(self) -> None:
        told, of = self._of_cluster, "gateway"
        self.queue = told(
            "gauge", "headgate_queue_size", "Events that wait in lanes for a gateway.", of
        )
        self.pressure = told(
            "gauge", "headgate_backpressure_lanes", "Lanes by their backpressure.", of, "level"
        )
        self.pressure_events = told(
            "counter",
            "headgate_backpressure_events_total",
            "Times the backpressure of a lane rose to soft or hard.",
            of,
            "level",
        )
        self.breaker = told(
            "gauge", "headgate_breaker_lanes", "Lanes by the state of their breaker.", of, "state"
        )
        self.batches = told(
            "counter", "headgate_batches_delivered_total", "Batches a gateway answered.", of
        )
        self.round_trips = told(
            "histogram", "headgate_delivery_seconds", "Round trip of an answered batch.", of
        )
        self.successes = told(
            "counter", "headgate_delivery_success_total", "Events a gateway acknowledged.", of
        )
        self.errors = told(
            "counter", "headgate_delivery_errors_total", "Batches that failed or were refused.", of
        )
        self.retries = told("counter", "headgate_delivery_retries_total", "Batches sent again.", of)
        self.parked = told("counter", "headgate_parked_total", "Events that were parked.", of)
        self.redriven = told(
            "counter", "headgate_redriven_total", "Parked events that were delivered.", of
        )
        self.dead = told("counter", "headgate_dead_letters_total", "Events dead-lettered.", of)
        self.released = told(
            "counter", "headgate_released_total", "Events whose subscriptions had ended.", of
        )

    def _describe_connectors(self) -> None:
        told, of = self._of_cluster, "connector"
        self.connector_state = told(
            "gauge",
            "headgate_connector_state",
            "1 for the state of a connector, 0 for the others.",
            of,
            "state",
        )
        self.connector_lag = told(
            "gauge", "headgate_connector_lag_seconds", "How old the last change read is.", of
        )
        self.connector_behind = told(
            "gauge", "headgate_connector_lag_records", "Changes that wait to be read.", of
        )
        self.connector_history = told(
            "gauge",
            "headgate_connector_history_seconds",
            "How far back the origin keeps its history.",
            of,
        )
        self.connector_held = told(
            "gauge",
            "headgate_connector_held_bytes",
            "What the origin keeps for this connector alone.",
            of,
        )
        self.connector_taken = told(
            "counter",
            "headgate_connector_taken_total",
            "Changes taken into the log since the reader began.",
            of,
        )
        self.connector_left_out = told(
            "counter",
            "headgate_connector_left_out_total",
            "Changes that no route led anywhere, since the reader began.",
            of,
        )


ROLES: Final[dict[str, type[Metrics]]] = {
    "coordinator": CoordinatorMetrics,
    "ingest": IngestMetrics,
    "gateway": GatewayMetrics,
    "router": RouterMetrics,
}
