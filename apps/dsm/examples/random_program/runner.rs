//! One thread of a random program.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::slice;

use dsm::{Dsm, DsmSlice};
use dsm_protocol::Call;

use crate::oracle::Oracle;
use crate::program::{Action, Monitor, add_call};

/// A thread, which does what a script says in both memories.
pub(super) struct Runner<'a> {
    dsm: &'a Dsm,
    memory: DsmSlice<'a, u32>,
    oracle: &'a Oracle,
    next_value: u32,
    /// Carries bytes for system calls that write the shared memory.
    pipe: (PipeReader, PipeWriter),
}

impl<'a> Runner<'a> {
    /// Returns the thread with this number among all threads of all ranks.
    pub(super) fn new(
        dsm: &'a Dsm,
        memory: DsmSlice<'a, u32>,
        oracle: &'a Oracle,
        thread: usize,
    ) -> Result<Self, String> {
        let pipe = pipe().map_err(|error| format!("make a pipe: {error}"))?;
        // Threads write different values.
        let next_value = (thread as u32 + 1) << 20;
        Ok(Self { dsm, memory, oracle, next_value, pipe })
    }

    /// Runs the script to its end. Returns the first difference of the two memories.
    pub(super) fn run(&mut self, mut script: VecDeque<Action>) -> Result<(), String> {
        let mut step = 0;
        while let Some(action) = script.pop_front() {
            self.step(action, &mut script)
                .map_err(|what| format!("step {step}, {action:?}: {what}"))?;
            step += 1;
        }
        Ok(())
    }

    fn step(&mut self, action: Action, script: &mut VecDeque<Action>) -> Result<(), String> {
        match action {
            Action::Call(call) => self.call(call).map(drop),
            Action::Add(word) => {
                let former = self.call(add_call(word))?;
                self.oracle.add(word, former)
            }
            Action::Read(word) => self.check(word),
            Action::Write(word) | Action::Race(word) => {
                let value = self.new_value();
                self.write(word, value);
                Ok(())
            }
            Action::WritePinned(word) => self.write_by_system_call(word),
            Action::Count(word, is_up) => {
                self.check(word)?;
                let count = self.oracle.load(word);
                self.write(word, if is_up { count + 1 } else { count.wrapping_sub(1) });
                Ok(())
            }
            Action::PutItem(monitor) => {
                let Monitor { condition, counter, is_broadcast, .. } = monitor;
                let call =
                    if is_broadcast { Call::Broadcast(condition) } else { Call::Signal(condition) };
                script.push_front(Action::Call(call));
                script.push_front(Action::Count(counter, true));
                Ok(())
            }
            Action::TakeItem(monitor) => {
                let Monitor { lock, condition, counter, .. } = monitor;
                if self.memory.get(counter) == 0 {
                    script.push_front(action);
                    script.push_front(Action::Call(Call::Wait { condition, lock }));
                } else {
                    script.push_front(Action::Count(counter, false));
                }
                Ok(())
            }
        }
    }

    fn call(&self, call: Call) -> Result<u64, String> {
        self.dsm.call_machine(call).map_err(|error| error.to_string())
    }

    fn check(&self, word: usize) -> Result<(), String> {
        let (found, expected) = (self.memory.get(word), self.oracle.load(word));
        if found == expected {
            return Ok(());
        }
        Err(format!("found {found:#x} instead of {expected:#x}"))
    }

    fn write(&self, word: usize, value: u32) {
        self.memory.set(word, value);
        self.oracle.store(word, value);
    }

    /// Writes a word of a pinned page by `read`, which fails with `EFAULT` if the page is absent.
    fn write_by_system_call(&mut self, word: usize) -> Result<(), String> {
        let value = self.new_value();
        let (reader, writer) = &mut self.pipe;
        let place = self.memory.slice(word..=word).as_ptr().cast::<u8>();
        // SAFETY: the word is in the region, and no other thread accesses it in this phase.
        let bytes = unsafe { slice::from_raw_parts_mut(place, size_of::<u32>()) };
        let copied = writer.write_all(&value.to_ne_bytes()).and_then(|()| reader.read_exact(bytes));
        copied.map_err(|error| format!("a system call on a pinned page: {error}"))?;
        self.oracle.store(word, value);
        Ok(())
    }

    fn new_value(&mut self) -> u32 {
        self.next_value += 1;
        self.next_value
    }
}
