//! What can be promised, in units that never mix.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Which two data sets an (eps, delta) statement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbours {
    /// One record more or one less, so that N is not the same; what version 1 of a statement called the following.
    #[serde(alias = "add-remove")]
    AddOrRemoveOne,
    /// One record replaced by an empty one, which adds nothing to any sum: N is public, and with it T and the sampling rate. What the
    /// accountants here prove.
    ReplaceByEmpty,
    /// One record replaced by any other.
    ReplaceOne,
}

/// A promise about one record. Nats of mutual information and (eps, delta) are different things: 0.5 nats permit a total
/// variation of 0.90 between the two worlds, (0.5, 1e-5)-DP permits 0.245.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", from = "Written")]
pub enum Guarantee {
    /// The release and one record share at most this much mutual information, given the other records.
    MutualInformation {
        /// Nats.
        nats: f64,
    },
    /// (eps, delta) differential privacy.
    EpsDelta {
        /// Epsilon.
        eps: f64,
        /// Delta.
        delta: f64,
        /// Which data sets are compared.
        neighbours: Neighbours,
    },
    /// Nothing is promised.
    NonPrivate,
}

/// A [`Guarantee`] as it is read: every kind with braces, as strange fields beside a kind without any are not refused.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Written {
    MutualInformation { nats: f64 },
    EpsDelta { eps: f64, delta: f64, neighbours: Neighbours },
    NonPrivate {},
}

impl From<Written> for Guarantee {
    fn from(written: Written) -> Self {
        match written {
            Written::MutualInformation { nats } => Self::MutualInformation { nats },
            Written::EpsDelta { eps, delta, neighbours } => Self::EpsDelta { eps, delta, neighbours },
            Written::NonPrivate {} => Self::NonPrivate,
        }
    }
}

impl Guarantee {
    /// (eps, delta) for one record replaced by an empty one.
    pub fn eps_delta(eps: f64, delta: f64) -> Self {
        Self::EpsDelta { eps, delta, neighbours: Neighbours::ReplaceByEmpty }
    }

    /// What a narrow column says: the number and its unit.
    pub fn short(&self) -> String {
        match self {
            Self::MutualInformation { nats } => format!("{} nats", number(*nats)),
            Self::EpsDelta { eps, delta, .. } => format!("({}, {})-DP", number(*eps), number(*delta)),
            Self::NonPrivate => "nothing".into(),
        }
    }

    /// Whether anything is promised.
    pub fn is_private(&self) -> bool {
        !matches!(self, Self::NonPrivate)
    }
}

impl fmt::Display for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AddOrRemoveOne => "one record added or removed",
            Self::ReplaceByEmpty => "one record replaced by an empty one",
            Self::ReplaceOne => "one record replaced by another",
        })
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MutualInformation { nats } => {
                let nats = number(*nats);
                write!(
                    f,
                    "at most {nats} nats of mutual information with a record, given all other records; copies add up"
                )
            }
            Self::EpsDelta { eps, delta, neighbours } => {
                write!(f, "({}, {})-differential privacy, {neighbours}", number(*eps), number(*delta))
            }
            Self::NonPrivate => f.write_str("not private: nothing is promised"),
        }
    }
}

/// `x` with so many `places`, rounded up: a bound that is printed is still a bound.
pub fn up(x: f64, places: i32) -> f64 {
    let unit = 10f64.powi(places);
    let nearest = (x * unit).round();
    (if (x * unit - nearest).abs() < 1e-9 * nearest.abs() { nearest } else { (x * unit).ceil() }) / unit
}

/// Four significant digits, rounded up so that a printed bound is still a bound; scientific below 1e-3.
pub(crate) fn number(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return format!("{x}");
    }
    if x.abs() < 1e-290 {
        // Its power of ten is beyond f64: all digits.
        return format!("{x:e}");
    }
    let digits = 3 - x.abs().log10().floor() as i32;
    let unit = 10f64.powi(digits);
    let nearest = (x * unit).round();
    let up = if (x * unit - nearest).abs() < 1e-6 { nearest } else { (x * unit).ceil() } / unit;
    if up.abs() < 1e-3 {
        let text = format!("{up:.3e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
    } else {
        let text = format!("{up:.*}", digits.max(0) as usize);
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_never_mix() {
        let nats = Guarantee::MutualInformation { nats: 0.5 }.to_string();
        assert!(nats.contains("given all other records; copies add up"), "{nats}");
        assert!(nats.contains("nats") && !nats.contains("differential") && !nats.contains("eps"), "{nats}");
        let dp = Guarantee::eps_delta(0.5, 1e-5).to_string();
        assert_eq!(dp, "(0.5, 1e-5)-differential privacy, one record replaced by an empty one");
        assert!(!Guarantee::NonPrivate.is_private());
    }

    #[test]
    fn printed_bounds_are_rounded_up() {
        for (x, text) in
            [(0.51234, "0.5124"), (1e-5, "1e-5"), (12345.6, "12350"), (0.0, "0"), (2.0, "2"), (1.23451e-7, "1.235e-7")]
        {
            assert_eq!(number(x), text);
        }
    }

    #[test]
    fn printed_bounds_are_bounds_down_to_the_smallest_numbers() {
        for x in [5e-324, 1e-310, 3.3e-300, 1.234_56e-9, 0.123_451, 0.999_96, 7.0, 12_345.6, 1e300] {
            let read: f64 = number(x).parse().unwrap();
            assert!(read >= x * (1.0 - 1e-8) && read <= x * 1.001, "{x:e} is printed as {}", number(x));
        }
    }

    #[test]
    fn serialised_guarantees_read_back() {
        for g in [Guarantee::eps_delta(1.0, 1e-5), Guarantee::MutualInformation { nats: 0.1 }, Guarantee::NonPrivate] {
            let text = serde_json::to_string(&g).unwrap();
            assert_eq!(serde_json::from_str::<Guarantee>(&text).unwrap(), g);
            let more = text.replacen('{', r#"{"truly": 1, "#, 1);
            assert!(serde_json::from_str::<Guarantee>(&more).is_err(), "{more}");
        }
    }
}
