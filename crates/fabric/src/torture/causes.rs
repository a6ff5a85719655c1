//! Checks the causes with which connections and their operations end.

use super::end::{End, Stage};
use super::run::Run;
use crate::host::{Cause, Completion, CompletionKind, Fault, HostEngine};
use crate::oracle::Violation;

impl<E: HostEngine> Run<'_, E> {
    /// Records how an operation failed, and checks that this fault is possible. An access can be
    /// denied only if it is invalid. Memory can be missing only if it was deregistered.
    pub(super) fn note_fault(
        end: &mut End,
        found: Completion,
        peer_lost_inbox: bool,
    ) -> Result<(), Violation> {
        let posted = !matches!(found.kind, CompletionKind::Receive | CompletionKind::Notification);
        let Some(fault) = found.fault.filter(|_| posted) else { return Ok(()) };
        let has_cause = match fault {
            Fault::AccessDenied => end.rogues.contains(&found.context),
            Fault::LocalAccess => end.lost_local,
            Fault::PeerFailed => peer_lost_inbox && found.kind == CompletionKind::Send,
            _ => true,
        };
        if !has_cause {
            return Err(Violation::WrongFault { number: found.context, fault, cause: None });
        }
        if end.model.is_of_queue_pairs() {
            Self::check_order(end, found.context, fault)?;
        }
        end.faults.push((found.context, fault));
        Ok(())
    }

    /// Checks that a connection may end on this side with this cause, and that its operations
    /// failed with faults that match the cause.
    pub(super) fn check_cause(&mut self, pair: usize, side: usize, cause: Cause) {
        let state = &self.pairs[pair];
        let Some(end) = &state.ends[side] else { return };
        let other = state.ends[1 - side].as_ref();
        let other = other.filter(|other| other.generation == end.generation);
        let asked_too_much = |end: &End| !end.rogues.is_empty();
        let (own, theirs) = (asked_too_much(end), other.is_some_and(asked_too_much));
        let peer_is_new = self.hosts[state.hosts[1 - side]].life != end.counter_life;
        let has_peer_ended = other.is_none_or(|other| other.stage == Stage::Closed);
        let is_possible = match cause {
            Cause::ClosedHere | Cause::ClosedByPeer => {
                let may_fail = [state.lost_memory, state.had_rogue].contains(&end.generation);
                let has_failed = cause == Cause::ClosedByPeer && may_fail;
                self.is_closing || state.let_go == end.generation || has_failed
            }
            Cause::MemoryGone => state.lost_memory == end.generation,
            // Either the operation's local memory was deregistered, or the peer deregistered its
            // memory while the operation read it.
            Cause::OperationFailed => end
                .faults
                .iter()
                .any(|&(_, fault)| matches!(fault, Fault::LocalAccess | Fault::AccessDenied)),
            Cause::PeerRestarted => peer_is_new || has_peer_ended,
            Cause::AccessDenied => own || theirs || state.had_rogue == end.generation,
            Cause::Rejected => end.stage == Stage::Connecting,
            // The caller compares this cause with the state of the paths.
            Cause::Unreachable => true,
            Cause::Violation | Cause::Other(_) => false,
        };
        let found = format!("{cause:?}");
        let mut wrong = Ok(());
        if !is_possible {
            wrong = Err(Violation::WrongCause { pair, side, cause: found });
        } else if let Some(&(number, fault)) = end.faults.iter().find(|&&(number, fault)| {
            !(may_be_denied(end, cause, (number, fault)) || fits(cause, fault) || is_own(fault))
        }) {
            wrong = Err(Violation::WrongFault { number, fault, cause: Some(found) });
        } else if cause == Cause::AccessDenied && own && !theirs && self.lacks_denial(pair, side) {
            wrong = Err(Violation::WrongCause { pair, side, cause: "nothing denied".to_owned() });
        }
        self.check_of_end(pair, side, wrong);
    }

    /// Returns whether an expected denial is missing. A denial is expected if only this side
    /// requested an invalid access; it is missing if none of this side's operations was denied.
    fn lacks_denial(&self, pair: usize, side: usize) -> bool {
        let state = &self.pairs[pair];
        let Some(end) = &state.ends[side] else { return false };
        let knows_both = state.ends[1 - side]
            .as_ref()
            .is_some_and(|other| other.generation == end.generation && other.rogues.is_empty());
        // An engine that reports no causes cannot report a denial.
        knows_both
            && !end.gate.may_deny()
            && !end.faults.is_empty()
            && !end.faults.iter().any(|&failed| may_be_denied(end, Cause::AccessDenied, failed))
    }
}

/// Returns whether the peer may have denied an operation that failed with this fault, if the
/// connection ended with this cause. An operation that the peer has denied can also report missing
/// local memory, because this side can notice the missing memory before the denial arrives.
fn may_be_denied(end: &End, cause: Cause, (number, fault): (u64, Fault)) -> bool {
    let is_denial = match fault {
        Fault::AccessDenied => true,
        Fault::LocalAccess => cause == Cause::AccessDenied,
        _ => false,
    };
    is_denial && end.rogues.contains(&number)
}

/// Returns whether outstanding operations can fail with this fault if a connection ends with this
/// cause.
const fn fits(cause: Cause, fault: Fault) -> bool {
    match cause {
        Cause::Unreachable => matches!(fault, Fault::Unreachable),
        Cause::PeerRestarted => matches!(fault, Fault::PeerRestarted),
        Cause::Violation => matches!(fault, Fault::Violation),
        // On the side that denies an access, operations end with `Violation`, because the peer has
        // broken the rules.
        Cause::AccessDenied => matches!(fault, Fault::EndedByPeer | Fault::Violation),
        Cause::ClosedByPeer => matches!(fault, Fault::ClosedByPeer),
        Cause::Rejected => matches!(fault, Fault::EndedByPeer),
        // On the side that owns the receive, operations are flushed: the peer has done nothing
        // wrong. The sender of the message gets one of the other faults.
        Cause::MemoryGone => {
            matches!(fault, Fault::PeerFailed | Fault::EndedByPeer | Fault::Flushed)
        }
        Cause::OperationFailed | Cause::ClosedHere | Cause::Other(_) => {
            matches!(fault, Fault::Flushed)
        }
    }
}

/// Returns whether an operation failed because its local memory is missing; [`Run::note_fault`] has
/// checked that the memory is missing. Such an operation fails only after all earlier operations
/// are complete. Before that, the connection can end with any cause.
const fn is_own(fault: Fault) -> bool {
    matches!(fault, Fault::LocalAccess)
}
