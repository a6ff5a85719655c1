//! Reads arbitrary graphs from a list of cables.

use super::{Builder, Topology, TopologyError};

/// Reads a topology from text. A line `A B` is a cable; a line `A B N` is N parallel cables. The
/// names `h0`, `h1`, … are hosts, and `s0`, `s1`, … are switches. `#` starts a comment. `file` is
/// the name of the text in errors.
///
/// # Errors
/// Returns [`TopologyError`]; each variant names one cause.
pub fn parse_edge_list(file: &str, text: &str) -> Result<Topology, TopologyError> {
    let mut cables = Vec::new();
    let (mut hosts, mut switches) = (0_u64, 0_u64);
    for (index, line) in text.lines().enumerate() {
        let wrong =
            |what: String| TopologyError::EdgeList { file: file.to_owned(), line: index + 1, what };
        let content = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = content.split_whitespace().collect();
        let (a, b, count) = match words.as_slice() {
            [] => continue,
            [a, b] => (*a, *b, "1"),
            [a, b, count] => (*a, *b, *count),
            _ => return Err(wrong(format!("{} words", words.len()))),
        };
        let parse =
            |name| Node::parse(name).ok_or_else(|| wrong(format!("`{name}` is not a node")));
        let (a, b) = (parse(a)?, parse(b)?);
        let count = count.parse::<u32>().ok().filter(|count| (1..=64).contains(count));
        let count = count.ok_or_else(|| wrong("the count must be from 1 to 64".to_owned()))?;
        for node in [a, b] {
            match node {
                Node::Host(host) => hosts = hosts.max(u64::from(host) + 1),
                Node::Switch(switch) => switches = switches.max(u64::from(switch) + 1),
            }
        }
        match (a, b) {
            (Node::Host(_), Node::Host(_)) => {
                return Err(wrong("a cable between two hosts".to_owned()));
            }
            (Node::Switch(a), Node::Switch(b)) if a == b => {
                return Err(wrong(format!("a cable from s{a} to itself")));
            }
            _ => cables.push((a, b, count)),
        }
    }
    let mut builder = Builder::new(file.to_owned(), hosts, switches)?;
    for (a, b, count) in cables {
        match (a, b) {
            (Node::Host(host), Node::Switch(switch)) | (Node::Switch(switch), Node::Host(host)) => {
                (0..count).for_each(|_| builder.attach(host, switch));
            }
            (Node::Switch(a), Node::Switch(b)) => builder.join(a, b, count),
            (Node::Host(_), Node::Host(_)) => {}
        }
    }
    builder.build()
}

#[derive(Clone, Copy)]
enum Node {
    Host(u32),
    Switch(u32),
}

impl Node {
    fn parse(name: &str) -> Option<Self> {
        let number = |digits: &str| {
            let is_plain = digits.bytes().all(|digit| digit.is_ascii_digit());
            digits.parse().ok().filter(|_| is_plain)
        };
        match name.strip_prefix('h') {
            Some(digits) => number(digits).map(Self::Host),
            None => name.strip_prefix('s').and_then(number).map(Self::Switch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cables_is_a_topology() {
        let text = "# two switches\nh0 s0\ns1 h1\n\ns0 s1 3 # trunk\n";
        let topology = parse_edge_list("a.txt", text).expect("it is well formed");
        assert_eq!((topology.hosts(), topology.switches()), (2, 2));
        assert_eq!(topology.links().len(), 10);
        assert_eq!(topology.link_name(8), "s0->s1#2");
    }

    #[test]
    fn errors_name_file_and_line() {
        let refused = |text: &str| parse_edge_list("a.txt", text).expect_err("wrong").to_string();
        assert!(refused("h0 s0\nh1 x1\n").starts_with("a.txt:2: `x1` is not a node"));
        assert!(refused("h0 h1\n").contains("a.txt:1: a cable between two hosts"));
        assert!(refused("h0 s0 0\n").contains("from 1 to 64"));
        assert!(refused("h0 s0 1 1\n").contains("4 words"));
        assert!(refused("s0 s0\n").contains("to itself"));
        assert!(refused("h0 s0\nh1 s1\n").contains("no path from h0 to h1"));
        assert!(refused("h0 s0\nh2 s0\n").contains("host h1 has 0 cables"));
        assert!(refused("h0 s0 2\n").contains("host h0 has 2 cables"));
        assert!(refused("").contains("hosts is 0"));
        assert!(refused("h99999999999 s0").contains("is not a node"));
    }
}
