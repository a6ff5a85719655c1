//! Searches for a deadlock when no events remain.

use super::{Context, RouterFabric, Stage, Stuck};

impl RouterFabric {
    /// Returns the circle in which packets wait for each other, or [`Stuck::Silent`] if there is
    /// none. Starts the search at any buffer with flits.
    pub(super) fn find_circle(&self, context: &Context) -> Stuck {
        let silent = Stuck::Silent { messages: context.messages.len() };
        let Some(mut at) = self.inputs.iter().position(|input| input.len > 0) else {
            return silent;
        };
        let mut way: Vec<usize> = Vec::new();
        loop {
            if let Some(start) = way.iter().position(|&before| before == at) {
                let circle = way[start..].iter().map(|&at| self.describe(at)).collect();
                return Stuck::Deadlock { circle };
            }
            way.push(at);
            let Some(next) = self.awaited(at) else { return silent };
            at = next;
        }
    }

    /// Returns the buffer for which the first flit of a buffer waits.
    fn awaited(&self, at: usize) -> Option<usize> {
        let input = self.inputs[at];
        let channels = usize::from(self.configuration.channels);
        let first = input.link as usize * channels;
        match input.stage {
            Stage::Idle => None,
            Stage::Active => Some(first + usize::from(input.channel)),
            Stage::Routed => {
                let wanted =
                    first + usize::from(input.usable.0)..first + usize::from(input.usable.1);
                let mut taken = wanted.filter(|&channel| self.outputs[channel].is_taken);
                taken.next().map(|channel| self.outputs[channel].owner as usize)
            }
        }
    }

    fn describe(&self, at: usize) -> String {
        let channels = usize::from(self.configuration.channels);
        let name = |link: usize| self.names.get(link).map_or("nothing", String::as_str);
        let waits_for = name(self.inputs[at].link as usize);
        format!(
            "  buffer of {}, channel {} waits for {waits_for}",
            name(at / channels),
            at % channels
        )
    }
}
