//! Stateless answers to unknown peers. A cookie proves that an unknown peer receives at its
//! address. A rate limit bounds the answers.

use core::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};
use wire_edge::{ConnectionId, PeerAddr};

use crate::time::Instant;

/// Bytes of a cookie on the wire (`docs/protocol.md`, 2.2).
pub const COOKIE_BYTES: usize = 24;

/// Lifetime of a cookie, in nanoseconds: ten times the longest pause between two Hellos of one
/// connection attempt.
pub const COOKIE_LIFETIME_NS: u64 = 10_000_000_000;

/// Issues and verifies the cookies of the handshake.
///
/// If an unknown peer requests a connection, the endpoint answers with a cookie and stores nothing.
/// The endpoint allocates memory only when the cookie returns from the same address, for the same
/// connection and service.
///
/// A cookie consists of its time of issue and an authentication code. The code covers that time and
/// all data to which the cookie is bound. The key of the code never leaves the endpoint. A peer may
/// use a cookie again during the cookie's lifetime. The endpoint notices such a repetition, because
/// the cookie is bound to a connection id.
#[derive(Clone)]
pub struct CookieJar {
    key: [u8; 16],
}

/// The reason why a cookie is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CookieError {
    /// This endpoint issued the cookie, but too long ago. The peer needs a new cookie.
    #[error("the cookie was issued more than {} s ago", COOKIE_LIFETIME_NS / 1_000_000_000)]
    Expired,
    /// This endpoint did not issue the cookie, or issued it to another peer or for another request.
    #[error("the cookie was not issued to this peer for this request")]
    Forged,
}

impl CookieJar {
    /// Creates a jar with `key`. The key must be random, and new at every start of the endpoint.
    pub const fn new(key: [u8; 16]) -> Self {
        Self { key }
    }

    //= protocol.md: cookie.2
    /// Returns the cookie for `peer`, which has requested a connection to `service` with the
    /// connection id `source`.
    pub fn issue(
        &self,
        now: Instant,
        peer: PeerAddr,
        source: ConnectionId,
        service: u32,
    ) -> [u8; COOKIE_BYTES] {
        let mut cookie = [0; COOKIE_BYTES];
        let (time, code) = cookie.split_at_mut(8);
        time.copy_from_slice(&now.0.to_le_bytes());
        code.copy_from_slice(&self.code(now, peer, source, service).to_le_bytes());
        cookie
    }

    //= protocol.md: cookie.3
    /// Checks that [`CookieJar::issue`] returned `cookie` for the same arguments, at most
    /// [`COOKIE_LIFETIME_NS`] ago.
    ///
    /// # Errors
    /// Returns [`CookieError`] if the cookie was forged or has expired.
    pub fn verify(
        &self,
        now: Instant,
        peer: PeerAddr,
        source: ConnectionId,
        service: u32,
        cookie: &[u8; COOKIE_BYTES],
    ) -> Result<(), CookieError> {
        let (time, code) = cookie.split_at(8);
        let issued_at = Instant(u64::from_le_bytes(time.try_into().unwrap_or_default()));
        let code = u128::from_le_bytes(code.try_into().unwrap_or_default());
        // Compare all 128 bits at once, so that the duration of the comparison reveals nothing
        // about single bytes.
        if code != self.code(issued_at, peer, source, service) {
            return Err(CookieError::Forged);
        }
        if issued_at > now || now.since_ns(issued_at) > COOKIE_LIFETIME_NS {
            return Err(CookieError::Expired);
        }
        Ok(())
    }

    //= protocol.md: cookie.2
    fn code(&self, issued_at: Instant, peer: PeerAddr, source: ConnectionId, service: u32) -> u128 {
        let mut bound = [0; 36];
        bound[..8].copy_from_slice(&issued_at.0.to_le_bytes());
        bound[8..28].copy_from_slice(&peer.0);
        bound[28..32].copy_from_slice(&source.0.to_le_bytes());
        bound[32..].copy_from_slice(&service.to_le_bytes());
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&bound);
        hasher.finish128().as_u128()
    }
}

impl core::fmt::Debug for CookieJar {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CookieJar").finish_non_exhaustive()
    }
}

/// A token bucket. It permits a number of answers per second on average, and a burst of answers
/// after a pause.
///
/// The limiter stores only the time at which the bucket will be full again. If it stored a number
/// of tokens and the time of the last refill, each call could lose a fraction of a token by
/// rounding.
#[derive(Clone, Copy, Debug)]
pub struct RateLimiter {
    /// Time at which the bucket is full. If this time is in the past, the bucket is full now.
    full_at: Instant,
    /// Time until the next token, in nanoseconds.
    interval_ns: u64,
    /// Time in which an empty bucket gains all its tokens except one, in nanoseconds.
    slack_ns: u64,
}

impl RateLimiter {
    /// Creates a full bucket with room for `burst` tokens. The bucket gains `per_second` tokens
    /// each second. In both arguments, 0 counts as 1. A rate above 10^9 per second counts as 10^9.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let interval_ns = 1_000_000_000 / u64::from(per_second.clamp(1, 1_000_000_000));
        let slack_ns = interval_ns * u64::from(burst.max(1) - 1);
        Self { full_at: Instant::default(), interval_ns, slack_ns }
    }

    //= protocol.md: amplify.4
    /// Removes a token. Returns `false` if there is none.
    pub fn allow(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now);
        let allowed = full_at.since_ns(now) <= self.slack_ns;
        if allowed {
            self.full_at = full_at.after_ns(self.interval_ns);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    //= protocol.md: cookie.3
    #[test]
    fn a_cookie_holds_for_its_lifetime() {
        let cookie = JAR.issue(NOW, PEER, SOURCE, 5);
        let verify = |now| JAR.verify(now, PEER, SOURCE, 5, &cookie);
        assert_eq!(verify(NOW), Ok(()));
        assert_eq!(verify(NOW.after_ns(COOKIE_LIFETIME_NS)), Ok(()));
        assert_eq!(verify(NOW.after_ns(COOKIE_LIFETIME_NS + 1)), Err(CookieError::Expired));
        assert_eq!(verify(Instant(NOW.0 - 1)), Err(CookieError::Expired));
    }

    //= protocol.md: cookie.2
    #[test]
    fn a_cookie_is_bound_to_peer_connection_service_and_key() {
        let cookie = JAR.issue(NOW, PEER, SOURCE, 5);
        let mut other_peer = PEER;
        other_peer.0[3] ^= 1;
        let forged = Err(CookieError::Forged);
        assert_eq!(JAR.verify(NOW, other_peer, SOURCE, 5, &cookie), forged);
        assert_eq!(JAR.verify(NOW, PEER, ConnectionId(8), 5, &cookie), forged);
        assert_eq!(JAR.verify(NOW, PEER, SOURCE, 6, &cookie), forged);
        assert_eq!(CookieJar::new([2; 16]).verify(NOW, PEER, SOURCE, 5, &cookie), forged);
        assert_eq!(JAR.verify(NOW, PEER, SOURCE, 5, &[0; COOKIE_BYTES]), forged);
    }

    #[test]
    fn the_key_does_not_show_in_debug_output() {
        assert_eq!(format!("{JAR:?}"), "CookieJar { .. }");
    }

    #[test]
    fn a_token_bucket_grants_its_burst_and_then_its_rate() {
        let mut limiter = RateLimiter::new(10, 3);
        let granted =
            |limiter: &mut RateLimiter, now| (0..10).filter(|_| limiter.allow(now)).count();
        assert_eq!(granted(&mut limiter, NOW), 3);
        assert_eq!(granted(&mut limiter, NOW.after_ns(99_999_999)), 0);
        assert_eq!(granted(&mut limiter, NOW.after_ns(100_000_000)), 1);
        assert_eq!(granted(&mut limiter, NOW.after_ns(60_000_000_000)), 3);
    }

    proptest! {
        #[test]
        fn a_cookie_with_any_changed_bit_is_refused(bit in 0_usize..8 * COOKIE_BYTES) {
            let mut cookie = JAR.issue(NOW, PEER, SOURCE, 5);
            cookie[bit / 8] ^= 1 << (bit % 8);
            let verified = JAR.verify(NOW, PEER, SOURCE, 5, &cookie);
            prop_assert_eq!(verified, Err(CookieError::Forged));
        }

        //= protocol.md: amplify.4
        #[test]
        fn a_token_bucket_never_exceeds_burst_and_rate(
            pauses in prop::collection::vec(0_u64..50_000_000, 1..500),
            per_second in 1_u32..1_000,
            burst in 1_u32..20,
        ) {
            let mut limiter = RateLimiter::new(per_second, burst);
            let (mut now, mut passed) = (NOW, 0);
            for pause in pauses {
                now = now.after_ns(pause);
                passed += u64::from(limiter.allow(now));
            }
            let interval_ns = 1_000_000_000 / u64::from(per_second);
            prop_assert!(passed <= u64::from(burst) + now.since_ns(NOW) / interval_ns);
        }
    }

    const JAR: CookieJar = CookieJar::new([1; 16]);
    const NOW: Instant = Instant(20_000_000_000);
    const PEER: PeerAddr =
        PeerAddr([4, 0, 18, 52, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    const SOURCE: ConnectionId = ConnectionId(7);
}
