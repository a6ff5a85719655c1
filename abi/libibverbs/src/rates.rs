//! Codes of static rates.

use std::ffi::c_int;

/// Each entry has the code of a rate, the rate as a multiple of 2.5 Gbit/s, and the rate in Mbit/s.
/// If the rate is not a multiple of 2.5 Gbit/s, the second number is -1. The values are from IBA
/// volume 1 and later additions.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25_781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// Value of `IBV_RATE_MAX`, which means no limit.
const RATE_MAX: c_int = 0;

/// Implements `ibv_rate_to_mult`.
#[unsafe(export_name = "ethernot_ibv_rate_to_mult")]
pub(crate) extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, multiple, _)| *multiple)
}

/// Implements `mult_to_ibv_rate`.
#[unsafe(export_name = "ethernot_mult_to_ibv_rate")]
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    RATES
        .iter()
        .find(|(_, other, _)| *other == multiple && multiple > 0)
        .map_or(RATE_MAX, |(code, ..)| *code)
}

/// Implements `ibv_rate_to_mbps`.
#[unsafe(export_name = "ethernot_ibv_rate_to_mbps")]
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

/// Implements `mbps_to_ibv_rate`.
#[unsafe(export_name = "ethernot_mbps_to_ibv_rate")]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|(.., other)| *other == mbps).map_or(RATE_MAX, |(code, ..)| *code)
}
