//! One endpoint of the edge protocol: all its connections and links. The engine does no I/O and
//! reads no clock.
//!
//! [`Engine`] composes the handshake, [`delivery`] (packets, links) and [`semantics`] (operations).
//! Inputs are `handle_*` calls, and outputs are `poll_*` calls. Every call gets the time as the
//! argument `now`; all calls of a turn get the same value. A turn is:
//!
//! 1. [`Engine::handle_frame`] for each frame that the links received,
//! 2. [`Engine::handle_timeout`] if the time that [`Engine::poll_timeout`] returned has passed,
//! 3. [`Engine::poll_transmit`] once, which also acknowledges the received frames,
//! 4. [`Engine::poll_event`] on the control path, until it returns `None`.
//!
//! The engine itself puts completions into the completion queues. The functions above do not return
//! completions.
#![forbid(unsafe_code)]

mod ack_bytes;
mod ack_duty;
mod acknowledge;
mod agenda;
mod asks;
mod attempt;
mod close_notice;
mod config;
mod connection;
mod control;
mod control_frames;
mod datagram_calls;
mod datagram_port;
mod datagrams;
mod deferred_tails;
mod engine;
mod event;
mod frames;
mod handshake;
mod heard;
mod hello;
mod join;
mod joining;
mod keep_alive;
mod kept;
mod life;
mod link_set;
mod links;
mod liveness;
mod names;
mod new_frame;
mod news;
mod not_ready;
mod pairs;
mod parting;
mod parts;
mod path;
mod peer_names;
mod pending;
mod per_host;
mod phase;
mod purpose;
mod questions;
mod receive;
mod receive_wait;
mod reception;
mod redirect_port;
mod refusals;
mod replies;
mod report;
mod reported;
mod request_order;
mod rest;
mod retry;
mod returned;
mod scratch;
mod sending;
mod spread;
mod spreading;
mod table;
mod tails;
mod terms;
mod timeouts;
mod transmit;
mod uses;
mod watch;

pub use config::{Asking, EngineConfig};
pub use datagram_port::{DatagramError, DatagramPort, OutgoingDatagram, PortRequest};
pub use engine::{ConnectRequest, Engine};
pub use event::{
    AcceptError, Closed, ConnectError, ConnectionHandle, ConnectionInfo, Event, PathInfo, Unknown,
};
pub use joining::rank_pairs;
pub use links::EngineLinkError;
pub use new_frame::Emitted;
pub use redirect_port::{REDIRECT_ANSWER_BYTES_MAX, RedirectPort};
pub use scratch::Scratch;
pub use terms::{Grants, Terms};
