//! The points (combinations of settings) at which policies are compared.

use std::collections::BTreeSet;

use super::{EXERCISES, Exercise, LINK_SETS, Point, SHAPERS, SIZES, SPEEDS, Shaper};

/// Returns all points.
pub fn full() -> Vec<Point> {
    sensible().into_iter().map(point).collect()
}

/// Returns three sets of points (combinations of settings):
///
/// - Points in which, for every two properties, each pair of their levels occurs.
/// - Every exercise with every size on every set of links, on hosts with the speed of a calibrated
///   host, with normal and with slow timers.
/// - The points that are measured on virtual Ethernet too.
pub fn pairs() -> Vec<Point> {
    let mut points = covering();
    for links in LINK_SETS {
        for exercise in EXERCISES {
            for message_bytes in SIZES {
                for shaper in [Shaper::Timers, Shaper::SlowTimers] {
                    points.push(Point {
                        links,
                        shaper,
                        quarters: 4,
                        has_absences: false,
                        exercise,
                        message_bytes,
                        in_order: false,
                    });
                }
            }
        }
    }
    points.extend(as_measured());
    points.retain(is_sensible);
    without_repetitions(points)
}

/// Returns combinations of settings in which, for every two properties, each pair of their levels
/// occurs. Also returns those that `cargo xtask acceptance sender` measures on virtual Ethernet.
pub fn quick() -> Vec<Point> {
    let mut points = covering();
    points.extend(as_measured());
    without_repetitions(points)
}

/// Returns the combinations of settings that are measured on virtual Ethernet too.
fn as_measured() -> Vec<Point> {
    let mut points = Vec::new();
    for (name, exercise, message_bytes, in_order) in MEASURED {
        points.extend(LINK_SETS.into_iter().filter(|links| links.name == name).map(|links| {
            Point {
                links,
                shaper: Shaper::SlowTimers,
                quarters: 4,
                has_absences: false,
                exercise,
                message_bytes,
                in_order,
            }
        }));
    }
    points
}

fn without_repetitions(points: Vec<Point>) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for point in points {
        if !kept.contains(&point) {
            kept.push(point);
        }
    }
    kept
}

/// Returns combinations of settings in which, for every two properties, each pair of their levels
/// occurs. Chooses them one after another: each time, takes the combination of [`full`] that adds
/// the most new pairs.
fn covering() -> Vec<Point> {
    let all = sensible();
    let mut covered = BTreeSet::new();
    let mut chosen = Vec::new();
    loop {
        let fresh = |levels: &[usize; PROPERTIES]| {
            pairs_of(levels).filter(|pair| !covered.contains(pair)).count()
        };
        // If several combinations add equally many pairs, choose the first. Without this rule,
        // platforms could choose different ones.
        let best = all.iter().rev().max_by_key(|levels| fresh(levels));
        let Some(best) = best.filter(|levels| fresh(levels) > 0) else { break };
        covered.extend(pairs_of(best));
        chosen.push(point(*best));
    }
    chosen
}

/// Returns all combinations of settings that make sense, each as the levels of its properties.
fn sensible() -> Vec<[usize; PROPERTIES]> {
    let levels = |place: usize| {
        let mut left = place;
        LEVELS.map(|count| {
            let level = left % count;
            left /= count;
            level
        })
    };
    let all = (0..LEVELS.iter().product()).map(levels);
    all.filter(|&levels| is_sensible(&point(levels))).collect()
}

type Pair = (usize, usize, usize, usize);

fn pairs_of(levels: &[usize; PROPERTIES]) -> impl Iterator<Item = Pair> + use<> {
    let levels = *levels;
    (0..PROPERTIES).flat_map(move |one| {
        (one + 1..PROPERTIES).map(move |other| (one, levels[one], other, levels[other]))
    })
}

fn point(levels: [usize; PROPERTIES]) -> Point {
    let [links, quarters, size, exercise, shaper, absences, order] = levels;
    Point {
        links: LINK_SETS[links],
        shaper: SHAPERS[shaper],
        quarters: SPEEDS[quarters],
        has_absences: absences == 1,
        exercise: EXERCISES[exercise],
        message_bytes: SIZES[size],
        in_order: order == 1,
    }
}

/// Returns whether a combination of settings makes sense. Ping-pongs are always in order, and links
/// without a rate limit need no shaper.
fn is_sensible(point: &Point) -> bool {
    let is_ping_pong = point.exercise == Exercise::PingPong;
    !(is_ping_pong && point.in_order || point.links.is_free() && point.shaper != Shaper::Timers)
}

/// The combinations that are measured on virtual Ethernet: links, exercise, size of a message in
/// bytes, and whether writes are delivered in order.
const MEASURED: [(&str, Exercise, u32, bool); 11] = [
    ("2x1G", Exercise::OneWay, 64 << 10, true),
    ("2x1G", Exercise::OneWay, 64 << 10, false),
    ("2x1G", Exercise::OneWay, 1 << 20, true),
    ("2x1G", Exercise::OneWay, 1 << 20, false),
    ("2x1G", Exercise::TwoWay, 1 << 20, true),
    ("2x1G", Exercise::TwoWay, 1 << 20, false),
    ("1G/20us+1G/2ms", Exercise::OneWay, 64 << 10, false),
    ("1G/20us+1G/2ms", Exercise::OneWay, 1 << 20, false),
    ("10G+1G", Exercise::OneWay, 1 << 20, false),
    ("1x10G", Exercise::OneWay, 1 << 20, false),
    ("1x10G", Exercise::TwoWay, 1 << 20, false),
];

const PROPERTIES: usize = 7;

/// Number of levels of each property.
const LEVELS: [usize; PROPERTIES] =
    [LINK_SETS.len(), SPEEDS.len(), SIZES.len(), EXERCISES.len(), SHAPERS.len(), 2, 2];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_levels_is_covered_by_few_points() {
        let points = quick();
        assert!(points.len() <= 80, "{} points", points.len());
        for one in full() {
            let is_covered = |is_alike: fn(&Point, &Point) -> bool| {
                points.iter().any(|point| is_alike(point, &one))
            };
            assert!(is_covered(|a, b| a.links == b.links && a.quarters == b.quarters));
            assert!(is_covered(|a, b| a.links == b.links && a.message_bytes == b.message_bytes));
            assert!(is_covered(|a, b| a.exercise == b.exercise && a.shaper == b.shaper));
            assert!(
                is_covered(|a, b| a.quarters == b.quarters && a.has_absences == b.has_absences)
            );
            assert!(is_covered(|a, b| a.shaper == b.shaper && a.has_absences == b.has_absences));
            assert!(is_covered(|a, b| a.in_order == b.in_order && a.exercise == b.exercise));
        }
    }

    #[test]
    fn every_measured_point_is_also_simulated() {
        assert_eq!(as_measured().len(), MEASURED.len());
        assert!(as_measured().iter().all(|point| full().contains(point)));
    }

    #[test]
    fn no_point_is_repeated() {
        for points in [quick(), pairs(), full()] {
            let mut names: Vec<String> = points.iter().map(Point::to_string).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), points.len());
        }
    }
}
