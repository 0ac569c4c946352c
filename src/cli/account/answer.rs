//! What accountants answer, for readers and for programs.

use crate::error::{Error, Result};
use crate::fsio;
use crate::privacy::guarantee::up;
use crate::privacy::{Bounds, eq12};
use serde_json::{Value, json};

/// What each accountant answers: epsilons, or settings; or why it has none.
pub(super) struct Answer {
    /// What the numbers are, as JSON names it: epsilon, noise_multiplier, flip, dither.
    of: &'static str,
    rdp: Result<f64, String>,
    pld: Result<Bounds, String>,
    refined: Option<Bounds>,
}

impl Answer {
    /// The usual interval's figure stands in for the refined one unless it is more than a tenth worse.
    pub fn new(
        of: &'static str,
        rdp: Result<f64, String>,
        refined: Result<Bounds, String>,
        usual: Option<f64>,
    ) -> Self {
        match (refined, usual) {
            (Ok(refined), Some(upper)) if upper <= 1.1 * refined.upper => Self {
                of,
                rdp,
                pld: Ok(Bounds { lower: refined.lower, upper: upper.max(refined.upper) }),
                refined: Some(refined),
            },
            (refined, _) => Self { of, rdp, pld: refined, refined: None },
        }
    }

    /// `epsilon_rdp`, `epsilon_pld` with its bounds, or the same of a setting; where one has no answer, why.
    pub fn json(&self) -> Value {
        let key = |who: &str| format!("{}_{who}", self.of);
        let mut out = json!({ key("rdp"): self.rdp.as_ref().ok(), key("pld"): self.pld.as_ref().ok() });
        if let Some(refined) = self.refined {
            out[key("pld_refined")] = json!(refined);
        }
        for (name, why) in [("rdp_refuses", self.rdp.as_ref().err()), ("pld_refuses", self.pld.as_ref().err())] {
            if let Some(why) = why {
                out[name] = json!(why);
            }
        }
        out
    }

    /// A line an accountant.
    pub fn text(&self) -> String {
        let mut text = match &self.rdp {
            Ok(rdp) => format!("  RDP            {:.4}\n", up(*rdp, 4)),
            Err(why) => format!("  RDP            none: {why}\n"),
        };
        let line = |name: &str, b: Bounds| {
            format!("  {name}{:.4}   (not below {:.4})\n", up(b.upper, 4), (1e4 * b.lower).floor() / 1e4)
        };
        match (&self.pld, self.refined) {
            (Ok(pld), Some(refined)) => {
                text += &line("PLD at 1e-3    ", *pld);
                text += &line("PLD refined    ", refined);
            }
            (Ok(pld), None) => text += &line("PLD            ", *pld),
            (Err(why), _) => text += &format!("  PLD            none: {why}\n"),
        }
        text
    }
}

/// JSON has no infinity: none is what is not bounded.
pub(super) fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

/// The paper's Eq. (12) against the truth.
pub(super) fn equation_12(p: f64, json: bool) -> Result<()> {
    if !(p > 0.0 && p <= 1.0) {
        return Err(Error::Usage(format!("--fire-probability must lie in (0, 1], found {p}")));
    }
    let rows = eq12::table(p);
    if json {
        let out = json!({ "is_a_bound": false, "fire_probability": p, "rows": rows });
        return fsio::print(&format!("{out}\n"));
    }
    let mut text = format!(
        "The paper's Eq. (12), for study. It is NOT a bound: its proof uses p <= p^alpha, which is false.\n\
         Rényi divergence of one dithered group that fires with probability p = {p:e}:\n\n\
         {:>9}  {:>5}  {:>10}  {:>10}\n",
        "sigma / C", "alpha", "Eq. (12)", "true"
    );
    for r in rows {
        let verdict = if r.fails { "claims less than is true" } else { "vacuous" };
        text += &format!("{:>9}  {:>5}  {:>10.1e}  {:>10.1e}  {verdict}\n", r.sigma, r.order, r.claimed, r.correct);
    }
    text += "\nFor a true (eps, delta) use --mechanism dither or rr.\n";
    fsio::print(&text)
}
