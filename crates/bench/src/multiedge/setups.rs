//! The set-ups of the paper and additional set-ups.

use serde::{Deserialize, Serialize};

use testbed::switched::LinkShape;

/// Links between two hosts, and the order of delivery over them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetUp {
    /// The name on the command line; the paper's name if the paper has this set-up.
    pub name: String,
    /// Description in words.
    pub description: String,
    /// The links.
    pub links: Vec<LinkShape>,
    /// MTU of the links, in bytes.
    pub mtu: u32,
    /// Whether all operations are delivered in order. Otherwise any order is allowed.
    pub in_order: bool,
    /// Whether kernel TCP is measured too, over the first link.
    pub with_tcp: bool,
    /// Whether the set-up is measured if the user selects no set-ups.
    pub by_default: bool,
}

/// Returns all set-ups, in this order: set-ups of the paper, other set-ups that are measured by
/// default, and set-ups that are measured only if the user selects them.
pub fn all() -> Vec<SetUp> {
    [of_the_paper(), beyond_the_paper(), if_named()].concat()
}

fn of_the_paper() -> Vec<SetUp> {
    vec![
        setup("1L-1G", "one link of 1 Gb/s (paper)", one(GIGABIT)),
        SetUp {
            in_order: true,
            ..setup(
                "2L-1G",
                "two links of 1 Gb/s, operations in order (paper)",
                one(GIGABIT).repeat(2),
            )
        },
        setup(
            "2Lu-1G",
            "two links of 1 Gb/s, operations out of order allowed (paper)",
            one(GIGABIT).repeat(2),
        ),
        setup("1L-10G", "one link of 10 Gb/s (paper)", one(10 * GIGABIT)),
    ]
}

fn beyond_the_paper() -> Vec<SetUp> {
    vec![
        SetUp {
            mtu: 9000,
            ..setup("1L-10G-9000", "one link of 10 Gb/s with jumbo frames", one(10 * GIGABIT))
        },
        setup("4L-2.5G", "four links of 2.5 Gb/s", one(5 * GIGABIT / 2).repeat(4)),
        setup(
            "1G+100M",
            "a link of 1 Gb/s and one of 100 Mb/s",
            vec![LinkShape::of_rate(GIGABIT), LinkShape::of_rate(GIGABIT / 10)],
        ),
        setup(
            "10G+1G",
            "a link of 10 Gb/s and one of 1 Gb/s",
            vec![LinkShape::of_rate(10 * GIGABIT), LinkShape::of_rate(GIGABIT)],
        ),
        setup(
            "1G/20us+1G/2ms",
            "two links of 1 Gb/s, one with a delay of 20 us and one with 2 ms",
            [20, 2000]
                .map(|delay_us| LinkShape { delay_us, ..LinkShape::of_rate(GIGABIT) })
                .to_vec(),
        ),
        setup("2L-10G", "two links of 10 Gb/s", one(10 * GIGABIT).repeat(2)),
    ]
}

/// Returns the set-ups that are measured only if the user selects them.
fn if_named() -> Vec<SetUp> {
    let mut setups = vec![
        SetUp {
            mtu: 9000,
            ..setup(
                "10G+1G-9000",
                "a link of 10 Gb/s and one of 1 Gb/s, with jumbo frames",
                vec![LinkShape::of_rate(10 * GIGABIT), LinkShape::of_rate(GIGABIT)],
            )
        },
        SetUp {
            mtu: 9000,
            ..setup(
                "4L-2.5G-9000",
                "four links of 2.5 Gb/s with jumbo frames",
                one(5 * GIGABIT / 2).repeat(4),
            )
        },
        setup("1L-100M", "one link of 100 Mb/s", one(GIGABIT / 10)),
        setup("2L-100M", "two links of 100 Mb/s", one(GIGABIT / 10).repeat(2)),
        lossy(1.0),
        lossy(5.0),
    ];
    for setup in &mut setups {
        setup.by_default = false;
    }
    setups
}

/// Returns the set-up with this name.
pub fn by_name(name: &str) -> Option<SetUp> {
    all().into_iter().find(|setup| setup.name.eq_ignore_ascii_case(name))
}

/// Returns a set-up with default properties: operations are delivered in any order, kernel TCP is
/// not measured, and the MTU is 1500 bytes.
fn setup(name: &str, description: &str, links: Vec<LinkShape>) -> SetUp {
    SetUp {
        name: name.to_string(),
        description: description.to_string(),
        links,
        mtu: 1500,
        in_order: false,
        with_tcp: false,
        by_default: true,
    }
}

fn one(rate: u64) -> Vec<LinkShape> {
    vec![LinkShape::of_rate(rate)]
}

fn lossy(percent: f64) -> SetUp {
    SetUp {
        with_tcp: true,
        ..setup(
            &format!("1L-1G-loss{percent}"),
            &format!("one link of 1 Gb/s that loses {percent} % of all frames"),
            vec![LinkShape { loss_percent: percent, ..LinkShape::of_rate(GIGABIT) }],
        )
    }
}

const GIGABIT: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let all = all();
        for setup in &all {
            assert_eq!(by_name(&setup.name).as_ref(), Some(setup));
        }
    }
}
