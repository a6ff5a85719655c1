//! libfabric: its provider `verbs`, and the providers layered above `verbs`, find the device
//! without settings.

use programs::{Network, Program, Side, are_installed, expect_both, fi_pingpong, fi_pingpong_with};

/// Endpoints: a provider and an endpoint type.
const ENDPOINTS: [(&str, &str); 4] =
    [("verbs", "msg"), ("verbs;ofi_rxm", "rdm"), ("verbs;ofi_rxd", "rdm"), ("verbs", "dgram")];

/// Endpoints that deliver every message. `fi_pingpong` fails if a datagram is lost.
const RELIABLE: [(&str, &str); 3] = [ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[2]];

#[test]
fn the_device_comes_first_of_all_providers() {
    if !are_installed(&["fi_info"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let all = Program::new("fi_info", "").run(&network, Side::Client);
    let first = all.expect_success().lines().find(|line| line.starts_with("provider:"));
    assert_eq!(first, Some("provider: verbs"), "{all}");
    for (provider, kind) in ENDPOINTS {
        let shown = Program::new("fi_info", "-p").argument(&provider).run(&network, Side::Client);
        let kind = format!("type: FI_EP_{}", kind.to_uppercase());
        let shown_all = shown.expect_success();
        assert!(shown_all.contains("domain: edge0") && shown_all.contains(&kind), "{shown}");
    }
}

#[test]
fn ping_pongs_of_all_sizes_pass_between_hosts_and_on_one_host() {
    if !are_installed(&["fi_pingpong"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let mut port = 25_000;
    for client in [Side::Client, Side::Server] {
        for endpoint in RELIABLE {
            expect_both(&fi_pingpong(&network, client, port, endpoint, ""));
            port += 1;
        }
    }
    expect_both(&fi_pingpong(&network, Side::Client, port, ENDPOINTS[1], "-m tagged -I 200"));
}

#[test]
fn endpoints_sharing_a_receive_queue_close() {
    if !are_installed(&["fi_pingpong"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let shared = [("FI_OFI_RXM_USE_SRX", "1")];
    let ended = fi_pingpong_with(&network, Side::Client, 25_050, ENDPOINTS[1], "", &shared);
    expect_both(&ended);
    for ended in ended {
        // Check the output too: if `fi_pingpong` cannot close an object, it prints an error but
        // still exits with status 0.
        assert!(!ended.output.contains("[error]"), "{ended}");
    }
}
