//! What the paper says about its figures, and whether it comes out.

use super::reference::Interconnect;
use super::results::Curve;

/// A statement of the paper.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Which figure.
    pub figure: &'static str,
    /// What the paper says.
    pub text: String,
    /// What the model gives.
    pub model: String,
    /// Whether it agrees.
    pub holds: bool,
    /// Why not, where that is known.
    pub note: Option<&'static str>,
}

/// All statements, from the completion times.
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

    /// Completion in µs; not a number if it was not run.
    fn time_us(&self, interconnect: Interconnect, bytes: u32, overhead: f64) -> f64 {
        self.find(interconnect, bytes).and_then(|curve| curve.at(overhead)).unwrap_or(f64::NAN)
    }

    fn knee(&self, interconnect: Interconnect, bytes: u32) -> f64 {
        self.find(interconnect, bytes).map_or(f64::NAN, |curve| curve.knee * 100.0)
    }
}

/// Fig. 5 without host overhead.
fn completion(curves: &Curves, eight_trunks_us: f64) -> Vec<Statement> {
    let time = |interconnect, bytes| curves.time_us(interconnect, bytes, 0.0);
    let (avici, myrinet, ethernet) =
        (Interconnect::Avici, Interconnect::Myrinet, Interconnect::Ethernet);
    let statement = |text: &str, model: String, holds| Statement {
        figure: "Fig. 5",
        text: text.to_owned(),
        model,
        holds,
        note: None,
    };
    let near = |value: f64, expected: f64, share: f64| (value / expected - 1.0).abs() <= share;
    let (small, large) = (time(avici, 32), time(avici, 2048));
    let equal = time(myrinet, 64) / time(avici, 64);
    let slower = time(myrinet, 2048) / large;
    let ratios = [32, 64, 128].map(|bytes| time(ethernet, bytes) / time(avici, bytes));
    let [most, _, least] = ratios;
    let crossing = time(ethernet, 2048) / time(myrinet, 2048);
    let with_eight = eight_trunks_us / time(myrinet, 2048);
    vec![
        statement(
            "Avici: 140 us at 32 B, 900 us at 2 KB",
            format!("{small:.0} and {large:.0} us"),
            near(small, 140.0, 0.15) && near(large, 900.0, 0.15),
        ),
        statement(
            "Myrinet equals Avici at small sizes",
            format!("{equal:.2} x at 64 B"),
            near(equal, 1.0, 0.15),
        ),
        statement(
            "Myrinet takes about 3 x as long at 2 KB",
            format!("{slower:.2} x"),
            near(slower, 3.0, 0.15),
        ),
        statement(
            "conventional GigE takes 3 to 6 x as long as both at small sizes",
            format!("{least:.1} to {most:.1} x at 128 to 32 B"),
            least >= 3.0 && most <= 6.5,
        ),
        Statement {
            note: (crossing >= 1.0).then_some(
                "with 6 trunks it is not; the rows of Table 2 at 2 KB look like 7 or 8 trunks",
            ),
            ..statement(
                "conventional GigE is better than Myrinet above 1 KB",
                format!("{crossing:.2} x at 2 KB with 6 trunks, {with_eight:.2} x with 8"),
                crossing < 1.0,
            )
        },
    ]
}

/// Fig. 5 with host overhead.
fn with_overhead(curves: &Curves) -> Vec<Statement> {
    let ratio = |interconnect, bytes| {
        curves.time_us(interconnect, bytes, 1.0) / curves.time_us(Interconnect::Myrinet, bytes, 1.0)
    };
    let avici = [32, 512, 2048].map(|bytes| ratio(Interconnect::Avici, bytes));
    let ethernet = [32, 512, 2048].map(|bytes| ratio(Interconnect::Ethernet, bytes));
    let worse = |ratios: [f64; 3]| ratios.map(|ratio| format!("{ratio:.2}")).join(", ");
    let is_near = |ratio: &f64| (1.04..=1.16).contains(ratio);
    let [first, _, last] = ethernet;
    vec![
        Statement {
            figure: "Fig. 5",
            text: "with host overhead Avici is about 10 % worse than Myrinet".to_owned(),
            model: format!("{} x at 32, 512, 2048 B", worse(avici)),
            holds: avici.iter().all(is_near),
            note: None,
        },
        Statement {
            figure: "Fig. 5",
            text: "with host overhead GigE is parallel to Myrinet".to_owned(),
            model: format!("{} x at 32, 512, 2048 B", worse(ethernet)),
            holds: (last / first - 1.0).abs() < 0.15,
            note: None,
        },
    ]
}

/// Fig. 6: where the network becomes the bottleneck.
fn knees(curves: &Curves) -> Vec<Statement> {
    let (avici, myrinet, ethernet) =
        (Interconnect::Avici, Interconnect::Myrinet, Interconnect::Ethernet);
    let mut statements: Vec<Statement> =
        [(myrinet, 256, 5.0), (myrinet, 512, 10.0), (myrinet, 1024, 20.0), (myrinet, 2048, 33.0)]
            .into_iter()
            .chain([(avici, 2048, 15.0)])
            .chain([32, 128, 512, 1024, 2048].map(|bytes| (ethernet, bytes, 15.0)))
            .map(|(interconnect, bytes, paper)| knee(curves, interconnect, bytes, paper))
            .collect();
    let proportional = [avici, myrinet].map(|interconnect| {
        let full = curves.time_us(interconnect, 64, 1.0);
        curves.time_us(interconnect, 64, 0.5) / full
    });
    statements.push(Statement {
        figure: "Fig. 6",
        text: "below 128 B completion is proportional to host overhead (Avici, Myrinet)".to_owned(),
        model: proportional.map(|share| format!("{share:.3}")).join(" and ")
            + " of the time at half the overhead, 64 B",
        holds: proportional.iter().all(|share| (0.5..0.55).contains(share)),
        note: None,
    });
    statements
}

fn knee(curves: &Curves, interconnect: Interconnect, bytes: u32, paper: f64) -> Statement {
    let model = curves.knee(interconnect, bytes);
    let note = match (interconnect, bytes) {
        (Interconnect::Avici, _) => Some("read off a curve that bends slowly"),
        (Interconnect::Ethernet, 1024..) => {
            Some("with 6 trunks the network of Table 2 takes that long; the figure shows less")
        }
        _ => None,
    };
    let holds = (model / paper - 1.0).abs() <= 0.2;
    Statement {
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
