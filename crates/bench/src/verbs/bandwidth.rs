//! Bandwidth in one direction, and in both directions at the same time.

use super::contender::{Contender, Manner};
use super::pass::{Kind, Pass};
use super::{Operation, Wishes};

/// Returns one pass for each kind and operation.
pub(super) fn passes(wishes: &Wishes) -> Vec<Pass> {
    let quick = wishes.is_quick;
    let sizes: &[u64] = if quick { &SIZES_QUICK } else { &SIZES };
    let windows: &[u32] = if quick { &WINDOWS_QUICK } else { &WINDOWS };
    let mut passes = Vec::new();
    for kind in [Kind::Bandwidth, Kind::BothWays] {
        for &operation in &wishes.operations {
            let mut contenders = wishes.on_devices(operation, Manner::Polling);
            contenders.push(Contender::Tcp(Manner::Polling));
            if !quick {
                contenders.extend(wishes.on_devices(operation, Manner::Events));
                contenders.push(Contender::Tcp(Manner::Events));
            }
            // In tests of both directions, exclude sends of 1 byte, because the receiver could not
            // distinguish them from an answer.
            let is_possible =
                |size: &&u64| **size > 1 || kind == Kind::Bandwidth || operation != Operation::Send;
            let sizes = if wishes.sizes.is_empty() { sizes } else { &wishes.sizes };
            passes.push(Pass {
                kind,
                operation,
                sizes: sizes.iter().filter(is_possible).copied().collect(),
                windows: if wishes.windows.is_empty() { windows } else { &wishes.windows }.to_vec(),
                contenders,
            });
        }
    }
    passes
}

/// The sizes of the paper's figures, which begin at 1 KiB.
const SIZES: [u64; 5] = [1 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20];
const SIZES_QUICK: [u64; 3] = [1 << 10, 64 << 10, 1 << 20];

/// Numbers of messages in a window. They are our choice, because the paper prints none.
const WINDOWS: [u32; 4] = [1, 16, 64, 256];
const WINDOWS_QUICK: [u32; 2] = [1, 16];
