//! The sending policy against that of `MultiEdge` and against plain turns, in virtual time: a part of
//! `ethernot sim policies`.

use fabric::polling::Exercise;
use fabric::polling::policies::{BELIEFS, CALIBRATED, Setting, compare, quick, recover};

const SETTING: Setting = Setting { costs: CALIBRATED, seeds: 1 };

fn print(exercise: Exercise) {
    for point in quick().into_iter().filter(|point| point.exercise == exercise) {
        let started = std::time::Instant::now();
        let found = compare(&point, &SETTING).expect("nothing is in the way");
        println!("{point} {:.4} {:?}", found.ratio(), started.elapsed());
    }
}

#[test]
fn one_way() {
    print(Exercise::OneWay);
}
#[test]
fn two_way() {
    print(Exercise::TwoWay);
}
#[test]
fn ping_pong() {
    print(Exercise::PingPong);
}
#[test]
fn recoveries() {
    for belief in BELIEFS {
        let started = std::time::Instant::now();
        println!("{} {:?}", recover(belief, &SETTING).expect("ok"), started.elapsed());
    }
}
