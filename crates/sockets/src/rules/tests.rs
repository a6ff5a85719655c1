use proptest::prelude::*;

use super::*;

fn subject<'a>(role: Role, local: &str, peer: &str, program: &'a str) -> Subject<'a> {
    Subject { role, local: local.parse().unwrap(), peer: peer.parse().unwrap(), program }
}

/// Returns the line number of the rule that decides about a connection from 10.0.0.1 to a service.
fn decides(rules: &Rules, service: &str) -> Option<u32> {
    let subject = subject(Role::Connecting, "10.0.0.1:40000", service, "curl");
    rules.first_for(&subject).map(Rule::line)
}

fn refused(text: &str, line: u32, problem: RuleProblem) {
    assert_eq!(Rules::parse(text), Err(RuleError { line, problem }), "{text}");
}

#[test]
fn the_first_matching_rule_decides() {
    let text = "# what stays\n\ntcp port 22,8000-8099 # ssh\nedge 10.0.0.0/8\r\ntcp 10.1.2.3\n";
    let rules = Rules::parse(text).unwrap();
    assert_eq!(rules.len(), 3);
    assert_eq!(decides(&rules, "10.9.9.9:22"), Some(3));
    assert_eq!(decides(&rules, "10.9.9.9:8099"), Some(3));
    assert_eq!(decides(&rules, "10.9.9.9:8100"), Some(4));
    // The network in line 4 contains this address, and line 4 comes first.
    assert_eq!(decides(&rules, "10.1.2.3:80"), Some(4));
    assert_eq!(decides(&rules, "192.0.2.1:80"), None);
    let subject = subject(Role::Connecting, "10.0.0.1:40000", "10.9.9.9:22", "curl");
    assert_eq!(rules.first_for(&subject).map(Rule::verdict), Some(Verdict::Tcp));
}

#[test]
fn a_rule_matches_connections_that_meet_all_its_conditions() {
    let rules = Rules::parse("edge accepting fd00::/8 program nginx port 80\ntcp").unwrap();
    let line = |subject: &Subject<'_>| rules.first_for(subject).map(Rule::line);
    let whole = subject(Role::Accepting, "[fd00::1]:80", "[fd00::2]:40000", "nginx");
    assert_eq!(line(&whole), Some(1));
    for other in [
        Subject { role: Role::Connecting, ..whole },
        Subject { program: "apache2", ..whole },
        Subject { peer: "[2001:db8::1]:40000".parse().unwrap(), ..whole },
        Subject { local: "[fd00::1]:81".parse().unwrap(), ..whole },
    ] {
        assert_eq!(line(&other), Some(2), "{other:?}");
    }
}

#[test]
fn a_mapped_address_matches_as_its_ipv4_address() {
    let rules = Rules::parse("edge 10.0.0.0/8").unwrap();
    assert_eq!(decides(&rules, "[::ffff:10.2.3.4]:80"), Some(1));
    let rules = Rules::parse("edge ::ffff:10.2.3.4").unwrap();
    assert_eq!(decides(&rules, "10.2.3.4:80"), Some(1));
}

#[test]
fn errors_name_the_line_and_the_word() {
    use RuleProblem::{Condition, Program, Twice, Value};
    refused("edge\nsocket 1.2.3.4", 2, RuleProblem::Verdict("socket".into()));
    refused("edge 10.0.0.0/33", 1, Condition("10.0.0.0/33".into()));
    refused("edge 10.0.0.0 to", 1, Condition("to".into()));
    refused("\n\ntcp port", 3, Value("port".into()));
    refused("tcp program", 1, Value("program".into()));
    refused("tcp port 22 port 23", 1, Twice("port".into()));
    refused("tcp connecting accepting", 1, Twice("accepting".into()));
    refused("tcp 10.0.0.1 10.0.0.2", 1, Twice("10.0.0.2".into()));
    refused("tcp port 22,x", 1, PortsError::Part("x".into()).into());
    refused("tcp port 0", 1, PortsError::Part("0".into()).into());
    refused("tcp port +1", 1, PortsError::Part("+1".into()).into());
    refused("tcp port 65536", 1, PortsError::Part("65536".into()).into());
    refused("tcp port 9-8", 1, PortsError::Order("9-8".into()).into());
    refused("tcp program a-name-of-16-byt", 1, Program("a-name-of-16-byt".into()));
    let many = "tcp\n".repeat(RULES_MAX + 1);
    refused(&many, RULES_MAX as u32 + 1, RuleProblem::TooMany);
    let message = Rules::parse("tcp prot 22").unwrap_err().to_string();
    assert!(message.starts_with("line 1: \"prot\"") && message.contains("port PORTS"), "{message}");
}

fn any_line() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("edge".to_owned()),
        Just("tcp".to_owned()),
        Just("port".to_owned()),
        Just("program".to_owned()),
        Just("connecting".to_owned()),
        "[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5})?",
        any::<IpAddr>().prop_map(|address| address.to_string()),
        (any::<IpAddr>(), 0..=33_u8).prop_map(|(address, bits)| format!("{address}/{bits}")),
        "\\PC{0,8}",
    ];
    proptest::collection::vec(word, 0..8).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn any_text_is_refused_or_parsed_to_rules_that_print_and_parse_again(
        lines in proptest::collection::vec(any_line(), 0..6),
    ) {
        fuzz_rules(lines.join("\n").as_bytes());
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        fuzz_rules(&bytes);
    }

    #[test]
    fn a_network_contains_exactly_the_addresses_with_its_prefix(
        address: u32, other: u32, bits in 0..=32_u8,
    ) {
        let network = Network::of(IpAddr::V4(address.into()), bits).unwrap();
        let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
        prop_assert!(network.contains(IpAddr::V4(address.into())));
        prop_assert_eq!(
            network.contains(IpAddr::V4(other.into())),
            address & mask == other & mask
        );
    }

    #[test]
    fn a_port_range_contains_the_ports_between_its_ends(
        first in 1..=u16::MAX,
        last in 1..=u16::MAX,
        port: u16,
    ) {
        let (first, last) = (first.min(last), first.max(last));
        let ports: Ports = format!("{first}-{last}").parse().unwrap();
        prop_assert_eq!(ports.contains(port), (first..=last).contains(&port));
    }
}
