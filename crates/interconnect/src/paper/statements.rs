//! The paper's statements about its figures. Checks whether the model agrees with them.

use super::reference::{Interconnect, KEY, number};
use super::results::Curve;

/// A statement of the paper.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Ids of the data values that the statement is about.
    pub ids: Vec<String>,
    /// Name of the figure.
    pub figure: &'static str,
    /// Text of the statement.
    pub text: String,
    /// Result of the model, in words.
    pub model: String,
    /// Whether the model agrees.
    pub holds: bool,
    /// Reason why the model disagrees, if it is known.
    pub note: Option<&'static str>,
}

/// Returns all statements, checked against completion times of the model.
pub(super) fn statements(curves: &[Curve], eight_trunks_us: f64) -> Vec<Statement> {
    let curves = Curves(curves);
    let mut statements = completion(&curves, eight_trunks_us);
    statements.extend(with_overhead(&curves));
    statements.extend(knees(&curves));
    statements
}

struct Curves<'a>(&'a [Curve]);

impl Curves<'_> {
    fn find(&self, interconnect: Interconnect, bytes: u32) -> Option<&Curve> {
        self.0.iter().find(|curve| curve.interconnect == interconnect && curve.bytes == bytes)
    }

    /// Returns a completion time in µs; NaN if the model did not compute it.
    fn time_us(&self, interconnect: Interconnect, bytes: u32, overhead: f64) -> f64 {
        self.find(interconnect, bytes).and_then(|curve| curve.at(overhead)).unwrap_or(f64::NAN)
    }

    fn knee(&self, interconnect: Interconnect, bytes: u32) -> f64 {
        self.find(interconnect, bytes).map_or(f64::NAN, |curve| curve.knee * 100.0)
    }
}

/// Returns the statements about Fig. 5 without host overhead.
fn completion(curves: &Curves, eight_trunks_us: f64) -> Vec<Statement> {
    let time = |interconnect, bytes| curves.time_us(interconnect, bytes, 0.0);
    let (avici, myrinet, ethernet) =
        (Interconnect::Avici, Interconnect::Myrinet, Interconnect::Ethernet);
    let statement = |ids: &[&str], text: &str, model: String, holds| Statement {
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        figure: "Fig. 5",
        text: text.to_owned(),
        model,
        holds,
        note: None,
    };
    let near =
        |value: f64, id: &str| (value / number(&format!("5.{id}")) - 1.0).abs() <= NEAR_SHARE_MAX;
    let [small_us, large_us] = ["5.avici-small", "5.avici-large"].map(number);
    let (times, from, until) =
        (number("5.myrinet-large"), number("5.ethernet-small"), number_max("5.ethernet-small"));
    let (small, large) = (time(avici, 32), time(avici, 2048));
    let equal = time(myrinet, 64) / time(avici, 64);
    let slower = time(myrinet, 2048) / large;
    let ratios = [32, 64, 128].map(|bytes| time(ethernet, bytes) / time(avici, bytes));
    let [most, _, least] = ratios;
    let crossing = time(ethernet, 2048) / time(myrinet, 2048);
    let with_eight = eight_trunks_us / time(myrinet, 2048);
    vec![
        statement(
            &["avici-small", "avici-large"],
            &format!("Avici: {small_us} us at 32 B, {large_us} us at 2 KB"),
            format!("{small:.0} and {large:.0} us"),
            near(small, "avici-small") && near(large, "avici-large"),
        ),
        statement(
            &["myrinet-small"],
            "Myrinet equals Avici at small sizes",
            format!("{equal:.2} x at 64 B"),
            near(equal, "myrinet-small"),
        ),
        statement(
            &["myrinet-large"],
            &format!("Myrinet takes about {times} x as long at 2 KB"),
            format!("{slower:.2} x"),
            near(slower, "myrinet-large"),
        ),
        statement(
            &["ethernet-small"],
            &format!(
                "conventional GigE takes {from} to {until} x as long as Avici and Myrinet at small \
                 sizes"
            ),
            format!("{least:.1} to {most:.1} x at 128 to 32 B"),
            least >= from && most <= until + 0.5,
        ),
        Statement {
            note: (crossing >= 1.0).then_some(
                "with 6 trunks, GigE is not better; the rows of Table 2 at 2 KB fit 7 or 8 trunks",
            ),
            ..statement(
                &["ethernet-large"],
                "conventional GigE is better than Myrinet above 1 KB",
                format!("{crossing:.2} x at 2 KB with 6 trunks, {with_eight:.2} x with 8"),
                crossing < 1.0,
            )
        },
    ]
}

/// Returns the statements about Fig. 5 with host overhead.
fn with_overhead(curves: &Curves) -> Vec<Statement> {
    let ratio = |interconnect, bytes| {
        curves.time_us(interconnect, bytes, 1.0) / curves.time_us(Interconnect::Myrinet, bytes, 1.0)
    };
    let avici = [32, 512, 2048].map(|bytes| ratio(Interconnect::Avici, bytes));
    let ethernet = [32, 512, 2048].map(|bytes| ratio(Interconnect::Ethernet, bytes));
    let worse = |ratios: [f64; 3]| ratios.map(|ratio| format!("{ratio:.2}")).join(", ");
    let percent = number("5.overhead-avici");
    // The paper says "about", so the check has a tolerance.
    let is_near = |ratio: &f64| (ratio - 1.0 - percent / 100.0).abs() <= 0.06;
    let [first, _, last] = ethernet;
    vec![
        Statement {
            ids: vec!["overhead-avici".to_owned()],
            figure: "Fig. 5",
            text: format!("with host overhead, Avici is about {percent} % worse than Myrinet"),
            model: format!("{} x at 32, 512, 2048 B", worse(avici)),
            holds: avici.iter().all(is_near),
            note: None,
        },
        Statement {
            ids: vec!["overhead-ethernet".to_owned()],
            figure: "Fig. 5",
            text: "with host overhead, the curve of GigE is parallel to the curve of Myrinet"
                .to_owned(),
            model: format!("{} x at 32, 512, 2048 B", worse(ethernet)),
            holds: (last / first - 1.0).abs() < 0.15,
            note: None,
        },
    ]
}

/// Returns the statements about Fig. 6: the overhead below which the network is the bottleneck.
fn knees(curves: &Curves) -> Vec<Statement> {
    let (avici, myrinet, ethernet) =
        (Interconnect::Avici, Interconnect::Myrinet, Interconnect::Ethernet);
    let mut statements: Vec<Statement> = [256, 512, 1024, 2048]
        .map(|bytes| (myrinet, bytes, "myrinet"))
        .into_iter()
        .chain([(avici, 2048, "avici")])
        .chain([32, 128, 512, 1024, 2048].map(|bytes| (ethernet, bytes, "ethernet")))
        .map(|(interconnect, bytes, name)| {
            knee(curves, interconnect, bytes, format!("knee-{name}-{bytes}"))
        })
        .collect();
    let proportional = [avici, myrinet].map(|interconnect| {
        let full = curves.time_us(interconnect, 64, 1.0);
        curves.time_us(interconnect, 64, 0.5) / full
    });
    statements.push(Statement {
        ids: vec!["proportional".to_owned()],
        figure: "Fig. 6",
        text: "below 128 B completion is proportional to host overhead (Avici, Myrinet)".to_owned(),
        model: proportional.map(|share| format!("{share:.3}")).join(" and ")
            + " of the time at half the overhead, 64 B",
        holds: proportional.iter().all(|share| (0.5..0.55).contains(share)),
        note: None,
    });
    statements
}

/// Returns the upper end of a range in the paper's text.
fn number_max(name: &str) -> f64 {
    let value = papers::printed::value(&format!("{KEY}/{name}"));
    value.and_then(|value| value.value_max).unwrap_or(f64::NAN)
}

fn knee(curves: &Curves, interconnect: Interconnect, bytes: u32, id: String) -> Statement {
    let paper = number(&format!("6.{id}"));
    let model = curves.knee(interconnect, bytes);
    let note = match (interconnect, bytes) {
        (Interconnect::Avici, _) => {
            Some("the paper reads the value from a curve that bends slowly")
        }
        (Interconnect::Ethernet, 1024..) => {
            Some("with 6 trunks, the network of Table 2 takes this long; the figure shows less")
        }
        _ => None,
    };
    let holds = (model / paper - 1.0).abs() <= 0.2;
    Statement {
        ids: vec![id],
        figure: "Fig. 6",
        text: format!(
            "{}, {bytes} B: the network is the bottleneck below {paper:.0} % of today's overhead",
            interconnect.name()
        ),
        model: format!("{model:.1} %"),
        holds,
        note: note.filter(|_| !holds),
    }
}

/// Maximum relative deviation from a round number that the paper's text states.
const NEAR_SHARE_MAX: f64 = 0.15;
