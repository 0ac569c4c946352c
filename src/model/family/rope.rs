//! The keys of a rotation: `rope_theta` and `rope_scaling`, or both in `rope_parameters`.

use super::keys::{Keys, MAX_SIZE};
use crate::error::{Error, Result, quoted};
use crate::model::config::{Rope, Scaling};
use serde_json::{Map, Value, json};

/// The rotation of heads that are `head_width` wide; `default_theta` where no base is given.
pub fn read(keys: &Keys, head_width: usize, positions: usize, default_theta: f64) -> Result<Rope> {
    let nothing = Map::new();
    let (name, object) = match (keys.get("rope_parameters"), keys.get("rope_scaling")) {
        (Some(Value::Object(o)), _) => ("rope_parameters", o),
        (None, Some(Value::Object(o))) => ("rope_scaling", o),
        (None, None) => ("rope_scaling", &nothing),
        _ => {
            let what =
                "rope_scaling or rope_parameters is no JSON object, and one that names the rope_type is expected";
            return Err(Error::file(keys.path, what));
        }
    };
    let own = Keys { object, path: keys.path };
    let theta = if own.get("rope_theta").is_some() { &own } else { keys }.positive("rope_theta", default_theta)?;
    let share = if own.get("partial_rotary_factor").is_some() { &own } else { keys };
    let share = share.positive("partial_rotary_factor", 1.0)?;
    let width = (head_width as f64 * share) as usize;
    if share > 1.0 || width == 0 || width % 2 != 0 {
        let what = format!(
            "{share} of a head of {head_width} columns, {width}, would be rotated, and an even number up to the head's width is expected"
        );
        return Err(Error::file(keys.path, what));
    }
    let kind = own.string("rope_type")?.or(own.string("type")?).unwrap_or("default");
    let scaling = match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: required(&own, name, "factor")? },
        "llama3" => Scaling::Llama3 {
            factor: required(&own, name, "factor")?,
            low: required(&own, name, "low_freq_factor")?,
            high: required(&own, name, "high_freq_factor")?,
            original: own.size(&["original_max_position_embeddings"], positions as u64, MAX_SIZE)?,
        },
        // What Phi-3 called it first; transformers reads "su" and "yarn" of that family as longrope.
        "longrope" | "su" => long_rope(keys, &own, name, width, positions)?,
        other => {
            let what = format!(
                "{name} has rope_type \"{}\", which is not supported: default, linear, llama3 and longrope are",
                quoted(other)
            );
            return Err(Error::file(keys.path, what));
        }
    };
    if let Scaling::Llama3 { low, high, .. } = scaling
        && high <= low
    {
        let what = format!("{name}: high_freq_factor {high} must be above low_freq_factor {low}");
        return Err(Error::file(keys.path, what));
    }
    Ok(Rope { theta, width, scaling })
}

fn required(own: &Keys, name: &str, key: &str) -> Result<f64> {
    if own.get(key).is_none() {
        return Err(Error::file(own.path, format!("{name} has no {key}, which its rope_type needs")));
    }
    own.positive(key, 1.0)
}

/// `attention = sqrt(1 + ln(factor) / ln(original))`, factor = positions / original, unless the file says otherwise.
fn long_rope(keys: &Keys, own: &Keys, name: &str, width: usize, positions: usize) -> Result<Scaling> {
    let list = |key: &str| -> Result<Vec<f64>> {
        let values = own.get(key).and_then(Value::as_array).map(|a| a.iter().map(Value::as_f64).collect());
        match values {
            Some(Some(values))
                if Vec::len(&values) == width / 2 && values.iter().all(|x| *x > 0.0 && x.is_finite()) =>
            {
                Ok(values)
            }
            _ => {
                let what = format!("{name} needs {key}, a list of {} numbers above 0", width / 2);
                Err(Error::file(own.path, what))
            }
        }
    };
    let key = "original_max_position_embeddings";
    // Transformers looks for it in rope_scaling for other types only.
    let place = if keys.get(key).is_none() && name == "rope_parameters" { own } else { keys };
    let (original, factor) = match place.get(key) {
        Some(_) => {
            let original = place.size(&[key], 1, MAX_SIZE)?;
            (original, positions as f64 / original as f64)
        }
        None => (positions, required(own, name, "factor")?),
    };
    let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
    let attention = own.positive("attention_factor", usual)?;
    Ok(Scaling::LongRope { short: list("short_factor")?, long: list("long_factor")?, original, attention })
}

/// `rope_theta` and `rope_scaling` as transformers writes them.
pub fn write(rope: &Rope, to: &mut Map<String, Value>) {
    let scaling = match &rope.scaling {
        Scaling::None => Value::Null,
        Scaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        Scaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }),
        Scaling::LongRope { short, long, original, attention } => {
            to.insert("original_max_position_embeddings".into(), json!(original));
            json!({"type": "longrope", "short_factor": short, "long_factor": long, "attention_factor": attention})
        }
    };
    to.insert("rope_scaling".into(), scaling);
    to.insert("rope_theta".into(), json!(rope.theta));
}
