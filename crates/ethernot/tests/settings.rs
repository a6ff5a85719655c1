//! Tests that an endpoint with an invalid setting is refused, and that the error names the setting.

use std::error::Error;

use ethernot::{ConnectOptions, Endpoint, EndpointBuilder, EngineConfig, UdpConfig};

fn builder() -> EndpointBuilder {
    Endpoint::builder().bind("127.0.0.1:0")
}

fn engine(change: impl FnOnce(&mut EngineConfig)) -> EndpointBuilder {
    let mut config = EngineConfig::default();
    change(&mut config);
    builder().engine(config)
}

fn udp(change: impl FnOnce(&mut UdpConfig)) -> EndpointBuilder {
    let mut config = UdpConfig::default();
    change(&mut config);
    builder().udp(config)
}

/// Checks that the build fails, and that its error or the error's source names the setting.
fn is_refused(builder: EndpointBuilder, setting: &str, value: &str, wanted: &str) {
    let error = builder.build().err().unwrap_or_else(|| panic!("{setting}: {value} is taken"));
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    for part in [setting, value, wanted] {
        assert!(message.contains(part), "{setting}: {value}: {message}");
    }
}

#[test]
fn an_endpoint_without_room_for_handles_is_refused() {
    is_refused(builder().handles_max(0), "`handles_max` is 0", "0", "1 to");
}

#[test]
fn a_limit_of_too_few_packets_in_flight_is_refused() {
    let few = engine(|config| config.packets_max = 100);
    is_refused(few, "`packets_max`", "100", "256 to 4096");
}

#[test]
fn engine_sizes_beyond_the_limits_are_refused() {
    is_refused(
        engine(|config| config.connections_max = 0),
        "`connections_max`",
        "0",
        "1 to 1048576",
    );
    is_refused(engine(|config| config.links_max = 17), "`links_max`", "17", "1 to 16");
    is_refused(
        engine(|config| config.operation_window = 0),
        "`operation_window`",
        "0",
        "1 to 65536",
    );
    is_refused(engine(|config| config.read_depth = 5000), "`read_depth`", "5000", "0 to 4096");
    is_refused(engine(|config| config.pools.operations = 0), "`pools.operations`", "0", "1 to");
}

#[test]
fn unusable_timeouts_are_refused() {
    is_refused(engine(|config| config.silence_budget_ns = 0), "`silence_budget_ns`", "0", "1 to");
    is_refused(engine(|config| config.rest_ns = 0), "`rest_ns`", "0", "1 to");
    let turned = engine(|config| {
        config.probe_timeout_min_ns = 2_000;
        config.probe_timeout_max_ns = 1_000;
    });
    is_refused(turned, "`probe_timeout_min_ns`", "2000", "1 to 1000");
}

#[test]
fn invalid_settings_of_a_udp_link_are_refused() {
    is_refused(
        udp(|config| config.frame_bytes_max = 255),
        "`frame_bytes_max`",
        "255",
        "256 to 65535",
    );
    is_refused(udp(|config| config.receive_messages = 17), "`receive_messages`", "17", "1 to 16");
}

#[test]
fn a_connection_without_room_for_completions_is_refused() {
    let endpoint = builder().build().expect("an endpoint");
    let mut options = ConnectOptions::new();
    options.completions = 0;
    let error = endpoint.connect_with("127.0.0.1:9", options).unwrap_err().to_string();
    assert_eq!(error, "the setting `completions` is 0; 1 to 16777216 would do");
}

#[test]
fn the_smallest_and_largest_valid_settings_are_accepted() {
    let smallest = EngineConfig::default().packets_max(256).links_max(1).rest_ns(1);
    let largest = EngineConfig::default().packets_max(4096).links_max(16).rest_ns(u64::MAX);
    for config in [smallest, largest, EngineConfig::multiedge()] {
        builder().engine(config).build().expect("it works");
    }
}
