//! All freely chosen constants of the sender, of the protocol's state machines and of the runtime,
//! with their kinds.

use self::Fixed::{Capacity, Layout, Paper, Protocol};
use self::Kind::{Behaviour, Fixed as Is};

/// The constants of a source file.
pub(super) struct File {
    /// The crate's folder below `crates`.
    pub(super) package: &'static str,
    /// Path of the file below `src`.
    pub(super) place: &'static str,
    pub(super) constants: &'static [(&'static str, Kind)],
}

/// The kind of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The constant decides behaviour. With this neutral value, the mechanism that uses the
    /// constant is off or has no limit, so that a test must fail.
    Behaviour(&'static str),
    /// The constant decides no behaviour that a simulated scenario could show.
    Fixed(Fixed),
}

/// Why a constant has no neutral value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fixed {
    /// An offset, a length in bytes, or a bit of a format.
    Layout,
    /// A size of allocated memory, or a limit of the kernel for one call.
    Capacity,
    /// A value from `docs/protocol.md`. `./x tidy` compares the page with the code.
    Protocol,
    /// A value from a paper, used by the sending policy that implements this paper.
    Paper,
}

/// The constants, by file, ordered by path.
pub(super) const FILES: &[File] = &[
    File { package: "delivery", place: "boundary.rs", constants: &[("QUOTED_BYTES", Is(Layout))] },
    File {
        package: "delivery",
        place: "congestion/aimd.rs",
        constants: &[
            ("CRUISE_ROUNDS", Behaviour("u8::MAX")),
            ("HOST_BYTES_MAX", Behaviour("1 << 60")),
            ("HOST_NS_MAX", Behaviour("1 << 60")),
            ("LOSS_EPOCH_PACKETS", Behaviour("1")),
            ("LOSS_EXCESSIVE_ONE_IN", Behaviour("1")),
            ("LOSS_LEAVES_PERCENT", Behaviour("100")),
            ("MARKED_SHARE_ONE", Is(Layout)),
            ("MARKED_SHARE_SHIFT", Behaviour("0")),
            ("MARK_LASTS_ROUNDS", Behaviour("0")),
            ("SLACK_FRAMES", Behaviour("0")),
            ("SLACK_NS", Behaviour("0")),
            ("TRIAL_ROUNDS", Behaviour("1")),
        ],
    },
    File {
        package: "delivery",
        place: "congestion/delay.rs",
        constants: &[("BETA_PERCENT", Behaviour("0")), ("REDUCTION_PERCENT_MAX", Behaviour("100"))],
    },
    File {
        package: "delivery",
        place: "congestion/mod.rs",
        constants: &[("WINDOW_FRAMES_MIN", Behaviour("1"))],
    },
    File {
        package: "delivery",
        place: "cookie.rs",
        constants: &[("COOKIE_BYTES", Is(Layout)), ("COOKIE_LIFETIME_NS", Behaviour("1 << 60"))],
    },
    File {
        package: "delivery",
        place: "link_estimate.rs",
        constants: &[
            ("MISTAKEN_TIMES", Behaviour("1")),
            ("QUEUE_SEEN_FRAMES", Behaviour("0")),
            ("QUEUE_SEEN_NS", Behaviour("0")),
            ("TRAIN_LIFETIME_NS", Behaviour("0")),
        ],
    },
    File {
        package: "delivery",
        place: "loss.rs",
        constants: &[
            ("REORDER_PACKETS", Behaviour("1")),
            ("REORDER_WINDOW_NS_MIN", Behaviour("0")),
            ("STEPS_MAX", Behaviour("0")),
            ("STEP_LIFETIME_ROUNDS", Behaviour("u32::MAX")),
        ],
    },
    File { package: "delivery", place: "pack.rs", constants: &[("BYTES_AT_FIRST", Is(Capacity))] },
    File {
        package: "delivery",
        place: "path_mtu.rs",
        constants: &[
            ("FRAME_BYTES_MIN", Is(Protocol)),
            ("LARGE_LOSSES_MAX", Behaviour("u8::MAX")),
            ("PRECISION_BYTES", Behaviour("1")),
            ("PROBES_PER_SIZE", Behaviour("1")),
            ("PROBE_SPACING_NS", Behaviour("0")),
            ("PROBE_TIMEOUT_NS", Behaviour("1 << 60")),
            ("RAISE_NS", Behaviour("1 << 60")),
            ("USUAL_SIZES", Behaviour("[1500; 10]")),
        ],
    },
    File {
        package: "delivery",
        place: "path_state.rs",
        constants: &[
            ("ANSWERS_UNTIL_UP", Behaviour("1")),
            ("CHALLENGE_NS", Behaviour("200_000_000")),
            ("CHALLENGE_NS_MAX", Behaviour("1 << 60")),
            ("NONCES", Behaviour("1")),
            ("SILENCE_BUDGET_NS", Behaviour("1 << 60")),
            ("TIMEOUTS_UNTIL_DOWN", Behaviour("u8::MAX")),
        ],
    },
    File {
        package: "delivery",
        place: "rate.rs",
        constants: &[
            ("HALF_ROUNDS", Behaviour("1")),
            ("LIMITED", Is(Layout)),
            ("STEADY_NS", Behaviour("1")),
            ("TRAIN_RAISE_SHIFT", Behaviour("31")),
            ("TRAIN_WAIT_NS", Behaviour("0")),
        ],
    },
    File {
        package: "delivery",
        place: "received.rs",
        constants: &[
            ("ANSWER_NS", Behaviour("0")),
            ("FRAMES_PER_ACK_MAX", Behaviour("u16::MAX")),
            ("JUMP_PACKETS_MAX", Behaviour("1 << 30")),
            ("REPLAY_WINDOW_PACKETS", Is(Protocol)),
            ("REPORTED_PACKETS", Is(Protocol)),
            ("RIDE_PACKETS", Behaviour("1")),
        ],
    },
    File {
        package: "delivery",
        place: "rtt.rs",
        constants: &[
            ("CONFIRMS_SHIFT", Behaviour("31")),
            ("EARLY_MEASUREMENTS", Behaviour("0")),
            ("JOIN_INTERVAL_NS", Behaviour("0")),
            ("KNOWN_SAMPLES", Behaviour("1")),
            ("MIN_LIFETIME_NS", Behaviour("(1 << 60, 1 << 60)")),
            ("MIN_LIFETIME_ROUND_TRIPS", Behaviour("1 << 30")),
            ("RAISE_SHIFT", Behaviour("0")),
        ],
    },
    File {
        package: "delivery",
        place: "scheduler.rs",
        constants: &[
            ("HELD_LATE_NS_MAX", Behaviour("1 << 60")),
            ("HOLD_NS", Behaviour("0")),
            ("RATE_WITHOUT_ANY_MEASUREMENT", Behaviour("1_000")),
            ("REMEASURE_FRAMES", Behaviour("0")),
            ("REMEASURE_NS", Behaviour("1 << 60")),
            ("RUN_DRY_NS", Behaviour("0")),
            ("UNMEASURED_FRAMES", Behaviour("1")),
        ],
    },
    File {
        package: "delivery",
        place: "send_half.rs",
        constants: &[
            ("PERSISTENT_PROBES", Behaviour("u32::MAX")),
            ("PROBE_MARGIN_NS", Behaviour("0")),
        ],
    },
    File {
        package: "delivery",
        place: "send_half/acknowledged.rs",
        constants: &[("DRAINED_ROUNDS", Behaviour("0"))],
    },
    File {
        package: "delivery",
        place: "send_half/window.rs",
        constants: &[
            ("AHEAD_FRAMES_MAX", Behaviour("0")),
            ("AHEAD_NS_MAX", Behaviour("0")),
            ("ASK_FRAMES_MAX", Behaviour("1_000_000")),
            ("BATCH_NS", Behaviour("1")),
            ("QUANTUM_BYTES_MAX", Is(Capacity)),
            ("QUANTUM_FRAMES_MIN", Behaviour("1")),
            ("QUANTUM_NS", Behaviour("0")),
            ("QUEUE_DIVISOR", Behaviour("1")),
        ],
    },
    File {
        package: "delivery",
        place: "sent_packets.rs",
        constants: &[
            ("GHOSTS_MAX", Behaviour("0")),
            ("PROBE_SLOTS", Behaviour("0")),
            ("RECORDS", Is(Capacity)),
            ("RECORDS_AT_FIRST", Is(Capacity)),
            ("RECORDS_MIN", Is(Capacity)),
        ],
    },
    File {
        package: "engine",
        place: "ack_duty.rs",
        constants: &[("RIDE_WAIT_NS", Behaviour("0"))],
    },
    File {
        package: "engine",
        place: "agenda.rs",
        constants: &[("OWING", Is(Layout)), ("READY", Is(Layout)), ("STALLED", Is(Layout))],
    },
    File {
        package: "engine",
        place: "asks.rs",
        constants: &[("ASK_LATE_NS", Behaviour("1 << 60")), ("ASK_TURN_FRAMES", Behaviour("0"))],
    },
    File {
        package: "engine",
        place: "config.rs",
        constants: &[
            ("CONNECTIONS_MAX", Is(Capacity)),
            ("MULTIEDGE_ACK_DELAY_NS", Is(Paper)),
            ("MULTIEDGE_FRAMES_PER_ACK", Is(Paper)),
            ("MULTIEDGE_TIMEOUT_NS", Is(Paper)),
            ("MULTIEDGE_WINDOW_FRAMES", Is(Paper)),
            ("NUMBERS_FROM_MIN", Is(Protocol)),
            ("OPERATION_WINDOW_MAX", Is(Protocol)),
            ("READ_DEPTH_MAX", Is(Protocol)),
            ("REST_NS", Behaviour("0")),
        ],
    },
    File { package: "engine", place: "control.rs", constants: &[("DRAIN_NS", Behaviour("0"))] },
    File {
        package: "engine",
        place: "control_frames.rs",
        constants: &[("ADDRESSES_PER_FRAME", Is(Layout)), ("NONCE_BYTES", Is(Layout))],
    },
    File { package: "engine", place: "datagram_port.rs", constants: &[("PORT_INDEX", Is(Layout))] },
    File {
        package: "engine",
        place: "datagrams.rs",
        constants: &[
            ("COPIED_BYTES_MAX", Behaviour("0")),
            ("MEMBERSHIPS_MAX", Is(Capacity)),
            ("PORTS_MAX", Is(Capacity)),
            ("WAITING_MAX", Is(Capacity)),
        ],
    },
    File {
        package: "engine",
        place: "redirect_port.rs",
        constants: &[
            ("HELLO", Is(Layout)),
            ("PREAMBLE_BYTES", Is(Layout)),
            ("REJECT_BYTES", Is(Layout)),
        ],
    },
    File { package: "engine", place: "engine.rs", constants: &[("LISTED_AHEAD", Is(Capacity))] },
    File {
        package: "engine",
        place: "handshake.rs",
        constants: &[
            ("HANDSHAKE_RETRY_NS", Behaviour("1 << 60")),
            ("HANDSHAKE_RETRY_NS_MAX", Behaviour("1 << 60")),
            ("HELLO_BYTES", Is(Layout)),
            ("PENDING_RETRY_NS", Behaviour("0")),
            ("RESET_BYTES", Is(Layout)),
        ],
    },
    File {
        package: "engine",
        place: "joining.rs",
        constants: &[
            ("ETHERNET", Is(Layout)),
            ("ROUNDS_MAX", Behaviour("1")),
            ("ROUND_PAUSE_NS", Behaviour("1 << 60")),
            ("ROUND_PAUSE_NS_MAX", Behaviour("1 << 60")),
            ("SHARED_MEMORY", Is(Layout)),
            ("TRIAL_CHALLENGES", Behaviour("1")),
            ("TRIAL_CHALLENGES_MAX", Behaviour("1")),
        ],
    },
    File {
        package: "engine",
        place: "kept.rs",
        constants: &[
            ("DATAGRAM_KEPT_NS", Behaviour("1 << 60")),
            ("KEPT_BYTES_MAX", Behaviour("1 << 40")),
            ("PORT_KEPT_BYTES_MAX", Behaviour("1 << 40")),
            ("SPARE_MAX", Is(Capacity)),
        ],
    },
    File { package: "engine", place: "link_set.rs", constants: &[("RETIRED_NS", Behaviour("0"))] },
    File { package: "engine", place: "links.rs", constants: &[("FRAME_BYTES_MIN", Is(Protocol))] },
    File {
        package: "engine",
        place: "liveness.rs",
        constants: &[("COMPARE_NS", Behaviour("1 << 60"))],
    },
    File {
        package: "engine",
        place: "new_frame.rs",
        constants: &[("CONTROL_BODY_MIN", Is(Layout)), ("PADDING", Is(Layout))],
    },
    File { package: "engine", place: "news.rs", constants: &[("EVENTS_KEPT", Is(Capacity))] },
    File { package: "engine", place: "parting.rs", constants: &[("PARTING_NS", Behaviour("0"))] },
    File {
        package: "engine",
        place: "path.rs",
        constants: &[
            ("RESET_PACKETS_MAX", Behaviour("1 << 30")),
            ("STALE_NS", Behaviour("1 << 60")),
            ("UNPROVEN_FACTOR", Behaviour("1 << 30")),
        ],
    },
    File {
        package: "engine",
        place: "receive_wait.rs",
        constants: &[("TRY_NS", Behaviour("1 << 60"))],
    },
    File {
        package: "engine",
        place: "pending.rs",
        constants: &[
            ("CLOSE", Is(Layout)),
            ("CLOSE_ACK", Is(Layout)),
            ("LINKS", Is(Layout)),
            ("MTU_PROBE", Is(Layout)),
            ("NOT_READY", Is(Layout)),
            ("PING", Is(Layout)),
            ("READY", Is(Layout)),
            ("REPORTS_MAX", Behaviour("u16::MAX")),
            ("STATUS", Is(Layout)),
        ],
    },
    File {
        package: "engine",
        place: "questions.rs",
        constants: &[
            ("CROWDED_NS", Behaviour("1")),
            ("NEWS_AT_ONCE", Behaviour("1_000_000_000")),
            ("NEWS_PER_S", Behaviour("1_000_000_000")),
            ("TRIES_AT_ONCE", Behaviour("1_000_000_000")),
            ("TRIES_PER_S", Behaviour("1_000_000_000")),
        ],
    },
    File {
        package: "engine",
        place: "reception.rs",
        constants: &[("CONFIRM_NS", Behaviour("1 << 60")), ("HOST_SHARE", Behaviour("1"))],
    },
    File {
        package: "engine",
        place: "refusals.rs",
        constants: &[("QUESTIONS", Behaviour("1")), ("QUESTION_NS", Behaviour("0"))],
    },
    File {
        package: "engine",
        place: "replies.rs",
        constants: &[("REPLIES_MAX", Behaviour("1 << 20"))],
    },
    File {
        package: "engine",
        place: "returned.rs",
        constants: &[("OPERATION_HEADER_BYTES", Is(Layout))],
    },
    File {
        package: "engine",
        place: "scratch.rs",
        constants: &[
            ("BATCH_BYTES_MAX", Is(Capacity)),
            ("BATCH_FRAMES", Is(Capacity)),
            ("FLAGS_OFFSET", Is(Layout)),
        ],
    },
    File {
        package: "engine",
        place: "sending.rs",
        constants: &[("MEMORY_PROBE_NS", Behaviour("0")), ("MEMORY_WINDOW_FRAMES", Behaviour("1"))],
    },
    File {
        package: "engine",
        place: "spread.rs",
        constants: &[
            ("LONGER_NS", Behaviour("1 << 60")),
            ("OFFLOADED_FRAMES", Behaviour("1")),
            ("OFFLOADED_SHARES_PER_SECOND", Behaviour("1_000_000_000")),
            ("RUN_FRAMES", Behaviour("1")),
            ("TURN_NS_MAX", Behaviour("0")),
        ],
    },
    File {
        package: "engine",
        place: "spreading.rs",
        constants: &[("STEP_FRAMES", Behaviour("u32::MAX"))],
    },
    File { package: "engine", place: "table.rs", constants: &[("GOLDEN_RATIO", Is(Layout))] },
    File { package: "engine", place: "tails.rs", constants: &[("TAILS_MAX", Behaviour("0"))] },
    File {
        package: "engine",
        place: "terms.rs",
        constants: &[("QUEUE_PAIR_KEEP_ALIVE_NS", Behaviour("1 << 60"))],
    },
    File {
        package: "engine",
        place: "timeouts.rs",
        constants: &[
            ("CHALLENGES_MAX", Behaviour("1")),
            ("CLOSE_RETRY_NS", Behaviour("1 << 60")),
            ("CLOSE_TRIES", Behaviour("1")),
            ("NEWS_NS", Behaviour("1 << 60")),
            ("NEWS_NS_MAX", Behaviour("1 << 60")),
        ],
    },
    File {
        package: "engine",
        place: "transmit.rs",
        constants: &[("BATCHES_PER_TURN", Behaviour("1_000_000"))],
    },
    File {
        package: "engine",
        place: "watch.rs",
        constants: &[("ANSWER_WAIT_NS", Behaviour("0")), ("FORGET_NS", Behaviour("0"))],
    },
    File {
        package: "runtime",
        place: "attached.rs",
        constants: &[("ASK_SILENT_NS", Behaviour("0")), ("SILENT_NS", Behaviour("0"))],
    },
    File { package: "runtime", place: "auxiliary.rs", constants: &[("READY_MAX", Behaviour("1"))] },
    File {
        package: "runtime",
        place: "beside.rs",
        constants: &[("LOOKS_PER_POLL", Behaviour("1"))],
    },
    File {
        package: "runtime",
        place: "cell.rs",
        constants: &[("EMPTY", Is(Layout)), ("LOOK_AGAIN", Is(Layout)), ("OCCUPIED", Is(Layout))],
    },
    File {
        package: "runtime",
        place: "clock.rs",
        constants: &[
            ("APART_MAX", Is(Capacity)),
            ("LOOK_NS", Behaviour("0")),
            ("MEASURED_NS_MAX", Behaviour("1 << 60")),
            ("MEASURED_NS_MIN", Behaviour("0")),
            ("TICKS_MAX", Is(Capacity)),
        ],
    },
    File {
        package: "runtime",
        place: "auxiliary_sockets.rs",
        constants: &[
            ("BURST", Behaviour("1")),
            ("AUXILIARY_SOCKETS_MAX", Is(Capacity)),
            ("AUXILIARY_KEYS", Is(Layout)),
        ],
    },
    File {
        package: "runtime",
        place: "driver.rs",
        constants: &[
            ("BURST_FRAMES", Behaviour("1_000_000")),
            ("MEMORY_BUSY_NS", Behaviour("0")),
            ("NEWS_NS", Behaviour("0")),
            ("SENT_OUT_ROUNDS", Behaviour("0")),
            ("TURNS_PER_SAMPLE", Behaviour("1")),
        ],
    },
    File {
        package: "runtime",
        place: "exit.rs",
        constants: &[
            ("LINGERING", Behaviour("Duration::ZERO")),
            ("MEETING", Behaviour("Duration::ZERO")),
            ("PARTING", Behaviour("Duration::ZERO")),
            ("PARTING_LOOK_NS", Behaviour("1 << 40")),
            ("SENDING", Behaviour("Duration::ZERO")),
            ("SENDING_LOOK", Behaviour("Duration::ZERO")),
        ],
    },
    File { package: "runtime", place: "fork.rs", constants: &[("SOCKETS", Is(Capacity))] },
    File {
        package: "runtime",
        place: "lookers.rs",
        constants: &[("LOOK_NS", Behaviour("1 << 60"))],
    },
    File {
        package: "runtime",
        place: "machine.rs",
        constants: &[
            ("KEY_BITS", Is(Layout)),
            ("MACHINES_MAX", Is(Capacity)),
            ("MACHINE_KEYS", Is(Layout)),
        ],
    },
    File {
        package: "runtime",
        place: "local_listener.rs",
        constants: &[("NAMES_MAX", Is(Capacity))],
    },
    File { package: "runtime", place: "park.rs", constants: &[("WAITERS_EXPECTED", Is(Capacity))] },
    File {
        package: "runtime",
        place: "progress_thread.rs",
        constants: &[("MEASURED_SLEEP_NS", Behaviour("0"))],
    },
    File {
        package: "runtime",
        place: "report_socket.rs",
        constants: &[("WRITING_MAX", Is(Capacity)), ("PATIENCE", Is(Capacity))],
    },
    File {
        package: "runtime",
        place: "retired.rs",
        constants: &[
            ("LOOK_NS", Behaviour("0")),
            ("LOOK_NS_MAX", Behaviour("0")),
            ("NS_PER_VISIT", Behaviour("0")),
            ("VISITED_AT_ONCE", Behaviour("1")),
        ],
    },
    File {
        package: "runtime",
        place: "runtime.rs",
        constants: &[
            ("COMMAND_LOOK", Behaviour("Duration::from_secs(3600)")),
            ("ENTER_NS", Behaviour("0")),
            ("PARK_NS_MAX", Behaviour("1 << 60")),
            ("ROUNDS_INLINE", Behaviour("1")),
            ("ROUNDS_MAX", Behaviour("1")),
        ],
    },
    File {
        package: "runtime",
        place: "sleep.rs",
        constants: &[
            ("FDS_PER_LINK", Is(Layout)),
            ("OTHERS_INLINE", Is(Capacity)),
            ("UNWATCHED_LINK_NS", Behaviour("0")),
        ],
    },
    File {
        package: "runtime",
        place: "source.rs",
        constants: &[
            ("DOORBELLS", Is(Capacity)),
            ("PULLED_MAX", Behaviour("1_000_000")),
            ("RUNG_AT_ONCE", Behaviour("0")),
        ],
    },
    File {
        package: "runtime",
        place: "tasks.rs",
        constants: &[("POLLS_PER_CLOCK", Behaviour("1"))],
    },
    File {
        package: "runtime",
        place: "waits.rs",
        constants: &[("SLEEP_COST_ASSUMED_NS", Behaviour("0"))],
    },
    File {
        package: "semantics",
        place: "inbound.rs",
        constants: &[("EXTRA_RANGES_MAX", Is(Capacity))],
    },
    File {
        package: "semantics",
        place: "inbound/yielding.rs",
        constants: &[("MASK_BYTES", Is(Capacity))],
    },
    File {
        package: "semantics",
        place: "limits.rs",
        constants: &[
            ("LISTS_MAX", Is(Capacity)),
            ("LIST_SHARE", Behaviour("1")),
            ("OPERATION_SHARE", Behaviour("1")),
            ("OPERATION_WINDOW_DEFAULT", Is(Capacity)),
            ("ORDER_BLOCK_BYTES", Is(Capacity)),
            ("SHARED_WINDOW", Behaviour("1 << 20")),
            ("NOT_READY_MAX", Is(Capacity)),
        ],
    },
    File {
        package: "semantics",
        place: "outbound/fragments.rs",
        constants: &[
            ("COPY_BYTES_MAX", Behaviour("0")),
            ("GATHERED_BYTES_MAX", Behaviour("1 << 30")),
            ("IMMEDIATE_BYTES", Is(Layout)),
            ("READ_RESPONSE_BYTES", Is(Layout)),
            ("SEND_BYTES", Is(Layout)),
            ("WRITE_BYTES", Is(Layout)),
        ],
    },
    File {
        package: "semantics",
        place: "range_set.rs",
        constants: &[("RANGES_MAX", Is(Capacity))],
    },
];
