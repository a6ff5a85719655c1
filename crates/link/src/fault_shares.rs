//! Parses fault rates from text, such as an argument of a command line.

use std::str::FromStr;

use thiserror::Error;

use crate::fault::FaultConfig;
use crate::stream_faults::StreamFaultShares;

/// Fault rates for arriving frames. Each is a fraction of all frames, 0.0 to 1.0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultShares {
    /// Fraction of frames that are lost.
    pub loss: f64,
    /// Fraction of frames that arrive twice.
    pub duplication: f64,
    /// Fraction of frames that later frames overtake.
    pub reordering: f64,
}

/// An error in the text of fault rates.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum FaultSharesError {
    /// A part of the text has no `=` with a value.
    #[error("{0:?} has no value; write it as in loss=0.01")]
    NoValue(String),
    /// No fault has this name.
    #[error("{0:?} is not a fault; use loss, dup or reorder, or delay or cut for iWARP devices")]
    Name(String),
    /// The value is not a number from 0.0 to 1.0.
    #[error("{0:?} is not a share; use a number between 0 and 1")]
    Share(String),
}

impl FaultShares {
    /// Parses text like `loss=0.01,delay=0.1`, with rates for links and for TCP streams.
    ///
    /// # Errors
    /// Returns [`FaultSharesError`]; each variant names one cause.
    pub fn parse_with_streams(text: &str) -> Result<(Self, StreamFaultShares), FaultSharesError> {
        let mut of_streams = StreamFaultShares::default();
        let of_links = Self::parse(text, |name, share| of_streams.set(name, share))?;
        Ok((of_links, of_streams))
    }

    /// Returns whether any rate is above zero.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the configuration of a [`Fault`](crate::Fault) with these rates.
    pub fn config(&self, seed: u64) -> FaultConfig {
        FaultConfig {
            seed,
            receive_loss: self.loss,
            duplication: self.duplication,
            reordering: self.reordering,
            ..FaultConfig::default()
        }
    }
}

impl FromStr for FaultShares {
    type Err = FaultSharesError;

    /// Parses text like `loss=0.01,dup=0.01,reorder=0.05`.
    fn from_str(text: &str) -> Result<Self, FaultSharesError> {
        Self::parse(text, |_, _| false)
    }
}

impl FaultShares {
    /// Parses text like `loss=0.01,dup=0.01`. Passes other names and their rates to `other`, which
    /// returns whether it knows the name.
    pub(crate) fn parse(
        text: &str,
        mut other: impl FnMut(&str, f64) -> bool,
    ) -> Result<Self, FaultSharesError> {
        let mut shares = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, share) =
                part.split_once('=').ok_or_else(|| FaultSharesError::NoValue(part.into()))?;
            let number = share.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
            let number: f64 = number.ok_or_else(|| FaultSharesError::Share(share.into()))?;
            match name.trim() {
                "loss" => shares.loss = number,
                "dup" => shares.duplication = number,
                "reorder" => shares.reordering = number,
                name if other(name, number) => {}
                name => return Err(FaultSharesError::Name(name.into())),
            }
        }
        Ok(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_streams_are_named_beside_those_of_links() {
        let parse = FaultShares::parse_with_streams;
        let of_links = FaultShares { loss: 0.5, ..FaultShares::default() };
        let of_streams = StreamFaultShares { delay: 0.25, cut: 1.0 };
        assert_eq!(parse("delay=0.25, loss=0.5,cut=1"), Ok((of_links, of_streams)));
        assert!(of_streams.is_any() && !StreamFaultShares::default().is_any());
        assert_eq!(parse("cut=2"), Err(FaultSharesError::Share("2".into())));
        assert_eq!(parse("luck=1"), Err(FaultSharesError::Name("luck".into())));
        let error = "delay=0.25".parse::<FaultShares>();
        assert_eq!(error, Err(FaultSharesError::Name("delay".into())));
    }

    #[test]
    fn shares_are_named_and_within_bounds() {
        let shares: FaultShares = "loss=0.01, dup=0.5,reorder=1".parse().unwrap();
        assert_eq!(shares, FaultShares { loss: 0.01, duplication: 0.5, reordering: 1.0 });
        assert!(shares.is_any());
        assert_eq!("".parse(), Ok(FaultShares::default()));
        for (text, problem) in [
            ("loss", FaultSharesError::NoValue("loss".into())),
            ("luck=0.1", FaultSharesError::Name("luck".into())),
            ("loss=2", FaultSharesError::Share("2".into())),
            ("loss=nan", FaultSharesError::Share("nan".into())),
        ] {
            assert_eq!(text.parse::<FaultShares>(), Err(problem));
        }
    }
}
