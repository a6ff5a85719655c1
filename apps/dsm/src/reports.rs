//! Reports of races and stalls, which go to the program or to standard error.

use crate::core::Core;
use crate::races::RaceReport;
use crate::stalls::StallReport;

impl Core {
    /// Reports races to the program, or on standard error. So does [`Self::report_stalls`]. The caller
    /// must not have the lock of the machine, which the program may need.
    pub(crate) fn report_races(&self, races: &[RaceReport]) {
        for race in races {
            match &self.on_race {
                Some(handler) => handler(race),
                None => eprintln!("ethernot dsm: {race}"),
            }
        }
    }

    /// Reports stalls.
    pub(crate) fn report_stalls(&self, stalls: &[StallReport]) {
        for stall in stalls {
            match &self.on_stall {
                Some(handler) => handler(stall),
                None => eprintln!("ethernot dsm: {stall}"),
            }
        }
    }
}
