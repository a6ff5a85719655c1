//! Mistakes that people make, and what they are told: the key, what stands there, the line, and what
//! would do.

use super::{Configuration, Watch, parse_sweep};
use crate::simulation::InTurns;

/// A configuration, and the whole of what is said about it.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str)] = &[
    ("[fabric]\nhost_rate_bps = \"10e9\"\n",
     "a.toml:2: host_rate_bps in [fabric] is \"10e9\", but must be from 500 kb/s to 8 Tb/s; \"10 Gb/s\" would do"),
    ("[fabric]\nhost_rate_bps = 10e9\n",
     "a.toml:2: host_rate_bps in [fabric] is 10e9, but must be from 500 kb/s to 8 Tb/s; \"10 Gb/s\" would do"),
    ("[fabric]\nhost_rate_bps = 10 Gb/s\n",
     "a.toml:2: string values must be quoted, expected literal string, in `host_rate_bps = 10 Gb/s`; host_rate_bps = \"10 Gb/s\" would do"),
    ("[fabric]\nhost_rate_bps = \"10 Gbps\"\n",
     "a.toml:2: host_rate_bps in [fabric] is \"10 Gbps\", but must be from 500 kb/s to 8 Tb/s; \"10 Gb/s\" would do"),
    ("[fabric]\nhost_rate_bps = \"10 MiB\"\n",
     "a.toml:2: host_rate_bps in [fabric] is \"10 MiB\", but must be from 500 kb/s to 8 Tb/s; \"10 Gb/s\" would do"),
    ("[fabric]\nhost_rate_bps = 10\n",
     "a.toml:2: host_rate_bps in [fabric] is 10, but must be from 500 kb/s to 8 Tb/s; \"500 kb/s\" would do"),
    ("[fabric]\nmtu_bytes = \"9 MB\"\n",
     "a.toml:2: mtu_bytes in [fabric] is \"9 MB\", but must be from 64 B to 1 MiB; \"1 MiB\" would do"),
    ("[fabric]\n\nmtu_byte = 9000\n",
     "a.toml:3: unknown key `mtu_byte` in [fabric]; did you mean `mtu_bytes`?"),
    ("[fabric]\nmtu_bytes = -1\n",
     "a.toml:2: mtu_bytes in [fabric] is -1, but must be from 64 B to 1 MiB; \"64 B\" would do"),
    ("[fabric]\nlatency_ps = \"1.5 ps\"\n",
     "a.toml:2: latency_ps in [fabric] is \"1.5 ps\", but must be from 0 to 1125 s; \"500 ns\" would do"),
    ("[fabric]\nlatency_us = 2\n",
     "a.toml:2: unknown key `latency_us` in [fabric]; did you mean `latency_ps`?"),
    ("[fabrick]\nkind = \"flit\"\n",
     "a.toml:1: unknown key `fabrick` outside of all sections; did you mean `fabric`?"),
    ("# a comment\nseed = 3\n",
     "a.toml:2: unknown key `seed` outside of all sections; it is a key of [run]"),
    ("[fabric]\nkind = \"ethernett\"\n",
     "a.toml:2: kind in [fabric] is \"ethernett\", but must be one of ethernet, wormhole, flit, loggp, fluid; \"ethernet\" would do"),
    ("[topology]\nkind = \"fattree\"\n",
     "a.toml:2: kind in [topology] is \"fattree\", but must be one of star, cascade, leaf_spine, fat_tree, torus, mesh, hyperx, dragonfly; \"fat_tree\" would do"),
    ("[topology]\nhosts = 4\nhost_rate_bps = 1\n",
     "a.toml:3: unknown key `host_rate_bps` in [topology]; it is a key of [fabric]"),
    ("[topology]\nkind = \"star\"\nleaves = 4\n",
     "a.toml:3: unknown key `leaves` in [topology]; it needs [topology] kind = \"leaf_spine\""),
    ("[topology]\nhosts = 1\n",
     "a.toml:2: hosts in [topology] is 1, but must be 2 or more in all"),
    ("[topology]\nkind = \"fat_tree\"\nradix = 7\n",
     "a.toml:3: radix in [topology] is 7, but must be even; 8 would do"),
    ("[topology]\nkind = \"torus\"\nsizes = 4\n",
     "a.toml:3: sizes in [topology] is 4, but must be a list of numbers, each a whole number from 1 to 65536; [4] would do"),
    ("[topology]\nkind = \"torus\"\nsizes = [4, 0]\n",
     "a.toml:3: sizes in [topology] is [4, 0], but must be a list of numbers, each a whole number from 1 to 65536; [4, 4] would do"),
    ("[routing]\nkind = \"dimension_order\"\n",
     "a.toml:2: kind in [routing] is \"dimension_order\", but must be \"shortest\" on star 16, which has no dimensions"),
    ("[routing]\nkind = \"spanning_tree\"\nroot = 1\n",
     "a.toml:3: root in [routing] is 1, but must be a switch of star 16, from 0 to 0"),
    ("[fabric]\nkind = \"wormhole\"\n[host]\nkind = \"edge\"\n",
     "a.toml:4: kind in [host] is \"edge\", but must be \"model\" on this fabric, or [fabric] kind = \"ethernet\""),
    ("[fabric]\nkind = \"wormhole\"\nmtu_bytes = 9000\n",
     "a.toml:3: unknown key `mtu_bytes` in [fabric]; it needs [fabric] kind = \"ethernet\", or [fabric] kind = \"flit\""),
    ("[fabric]\nlossless = 0\nclasses = 0\n",
     "a.toml:3: classes in [fabric] is 0, but must be a whole number from 1 to 8; 1 would do"),
    ("[fabric]\nlossless = [1]\n",
     "a.toml:2: lossless in [fabric] is [1], but must be a list of numbers, each a whole number from 0 to 0; [] would do"),
    ("[fabric]\nbuffer_bytes = 3000\n[workload]\nkind = \"incast\"\n",
     "a.toml:2: buffer_bytes in [fabric] is 3000, but must be 0, or [fabric] lossless = [0], or [host] transport = \"selective_repeat\", or [host] kind = \"edge\", for all messages to arrive; 145 packets were lost, and the workload waits for their messages"),
    ("[fabric]\nbuffer_bytes = 1000\n[host]\ntransport = \"go_back_n\"\n",
     "a.toml:2: buffer_bytes in [fabric] is 1000, but must be 0 or as much as a frame takes, 1526, as [host] transport sends it until it arrives; \"1526 B\" would do"),
    ("[fabric]\nshared_bytes = \"2 kB\"\nalpha_percent = 50\n[host]\ntransport = \"go_back_n\"\n",
     "a.toml:2: shared_bytes in [fabric] is \"2 kB\", but must be 0 or as much as a frame takes, 3052, as [host] transport sends it until it arrives; \"3052 B\" would do"),
    ("[fabric]\nrails = 2\n[host]\ntransport = \"go_back_n\"\n",
     "a.toml:2: rails in [fabric] is 2, but must be 1 with [host] transport; 1 would do"),
    ("[host]\ntransport = \"go-back-n\"\n",
     "a.toml:2: transport in [host] is \"go-back-n\", but must be one of none, go_back_n, selective_repeat; \"go_back_n\" would do"),
    ("[host]\ntransport = \"tcp\"\n",
     "a.toml:2: transport in [host] is \"tcp\", but must be one of none, go_back_n, selective_repeat; \"none\" would do"),
    ("[host]\ntransport = \"go_back_n\"\nwindow_frames = 0\n",
     "a.toml:3: window_frames in [host] is 0, but must be a whole number from 1 to 65536; 1 would do"),
    ("[host]\ntransport = \"go_back_n\"\ncongestion = \"dctcp\"\n",
     "a.toml:3: congestion in [host] is \"dctcp\", but must be \"fixed\" or \"delay\" where switches mark nothing; [fabric] ecn_max_bytes = \"100 kB\" would do"),
    ("[host]\ncongestion = \"delay\"\n",
     "a.toml:2: congestion in [host] is \"delay\", but must be \"fixed\" without a transport; [host] transport = \"selective_repeat\" would do"),
    ("[host]\nkind = \"edge\"\ntransport = \"go_back_n\"\n",
     "a.toml:3: unknown key `transport` in [host]; it needs [host] kind = \"model\""),
    ("[fabric]\nkind = \"fluid\"\n[host]\ntransport = \"go_back_n\"\n",
     "a.toml:4: transport in [host] is \"go_back_n\", but must be \"none\" on this fabric, or [fabric] kind = \"ethernet\""),
    ("[host]\nwindow_frames = 8\n",
     "a.toml:2: unknown key `window_frames` in [host]; it needs [host] kind = \"model\" and [host] transport = \"go_back_n\" or \"selective_repeat\""),
    ("[host]\nloss_ppm = 1000\n",
     "a.toml:2: unknown key `loss_ppm` in [host]; it needs [host] kind = \"edge\", or [host] kind = \"model\" and [host] transport = \"go_back_n\" or \"selective_repeat\""),
    ("[host]\nkind = \"edge\"\nrail = 2\n",
     "a.toml:3: unknown key `rail` in [host]; did you mean `rails`?"),
    ("[host]\nwindow = 4\n",
     "a.toml:2: unknown key `window` in [host]; it needs [host] kind = \"edge\""),
    ("[host]\nkind = \"edge\"\necn = \"yes\"\n",
     "a.toml:3: ecn in [host] is \"yes\", but must be true or false; true would do"),
    ("[host]\nkind = \"edge\"\n[[outage]]\nplace = \"s0\"\n[[outage]]\nplace = \"switch 0\"\n",
     "a.toml:6, [outage]: an outage of `switch 0`: there is no `switch 0`; hosts are h0, h1, …, switches s0, s1, …"),
    ("[host]\nkind = \"edge\"\n[fabric]\nmtu_bytes = 100\n",
     "a.toml:4, [fabric]: frames of 88 bytes: the edge protocol needs 256 to 65507; change mtu_bytes of the fabric"),
    ("[[outage]]\nplace = \"s0\"\n",
     "a.toml:2: place in [outage] is \"s0\", but must be absent, or [host] kind = \"edge\": only hosts with the real engine notice outages"),
    ("[workload]\nkind = \"ring\"\nranks = 17\n",
     "a.toml:3: ranks in [workload] is 17, but must be a whole number from 2 to 16; 16 would do"),
    ("[workload]\nkind = \"all_reduce\"\nalgorithm = \"pairwise\"\n",
     "a.toml:3: algorithm in [workload] is \"pairwise\", but must be one of ring, recursive_doubling, rabenseifner; \"ring\" would do"),
    ("[workload]\npattern = \"incast\"\ntarget = 16\n",
     "a.toml:3: target in [workload] is 16, but must be a whole number from 0 to 15; 15 would do"),
    ("[workload]\nload_percent = \"50 percent\"\n",
     "a.toml:2: load_percent in [workload] is \"50 percent\", but must be from 0 to 1000 %; \"50 %\" would do"),
    ("[workload]\nload_percent = 1000.5\n",
     "a.toml:2: load_percent in [workload] is 1000.5, but must be from 0 to 1000 %; \"1000 %\" would do"),
    ("[workload]\nsizes_file = 3\n",
     "a.toml:2: sizes_file in [workload] is 3, but must be the name of a file; \"sizes.cdf\" would do"),
    ("[workload]\nbytes = 1\n[workload]\nbytes = 2\n",
     "a.toml:3: duplicate key, in `[workload]`"),
    ("[run]\nwarmup_ps = \"2 ms\"\n",
     "a.toml:2: warmup_ps in [run] is \"2 ms\", but must be less than [workload] until_ps, 1 ms; \"500 us\" would do"),
    ("[workload]\nkind = \"barrier\"\n[run]\nwarmup_ps = \"2 s\"\n",
     "a.toml:4: warmup_ps in [run] is \"2 s\", but must be less, as all messages were posted before, and the run ended at 25.408 us; \"12.704 us\" would do"),
    ("[run]\nthreads = 2\n[fabric]\nkind = \"fluid\"\n",
     "a.toml:2, [run]: fluid runs on 1 thread, not on 2: only ethernet with hosts of kind model can be divided"),
    ("[sweep.fabric]\nmtu_bytes = [1500, 12]\n",
     "a.toml:2: mtu_bytes in [fabric] is 12, but must be from 64 B to 1 MiB; \"64 B\" would do"),
];

#[test]
fn mistakes_are_told_in_a_sentence_with_key_value_line_and_remedy() {
    let mut told = Vec::new();
    for (text, expected) in MISTAKES {
        let points = parse_sweep("a.toml", text, &|_| Err("no such file".to_owned()));
        let run = |configuration: &Configuration| {
            configuration.run_watched(&InTurns, Watch::default()).map(|_| ())
        };
        let error = match points {
            Err(error) => error.to_string(),
            Ok(points) => run(&points[0].configuration).expect_err(text).to_string(),
        };
        assert_eq!(error.lines().count(), 1, "{error}");
        // Told all together, as a changed word changes many.
        if error != *expected {
            told.push(format!("{text}{error}\n"));
        }
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
}
