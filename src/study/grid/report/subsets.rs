//! What of the model to tune: every method by itself, its sets of tensors at one budget side by side.

use super::sketches::{all_bits, bytes};
use super::{Group, is_base};
use crate::study::grid::Grid;
use crate::study::grid::sheet::{Column, Sheet};
use crate::study::spec::{Goal, Spec};
use crate::study::table::thousands;
use crate::study::verdict::{Verdict, interval};

/// Runs of the same method, budget, length and batch size, which differ in what they tune.
fn alike(a: &Spec, b: &Spec) -> bool {
    a.method == b.method && a.epochs == b.epochs && a.batch == b.batch
}

pub(super) fn tables(grid: &Grid, groups: &[Group]) -> (Vec<Sheet>, Vec<Verdict>, Vec<String>) {
    let Some(base) = groups.iter().find(|g| is_base(g)) else { return (Vec::new(), Vec::new(), Vec::new()) };
    let before = base.perplexity();
    let (mut sheets, mut findings) = (Vec::new(), Vec::new());
    let mut shown: Vec<&Spec> = Vec::new();
    for first in groups.iter().filter(|g| !is_base(g)) {
        if shown.iter().any(|spec| alike(spec, first.spec)) {
            continue;
        }
        shown.push(first.spec);
        let here: Vec<&Group> = groups.iter().filter(|g| alike(g.spec, first.spec)).collect();
        let columns: [Column<&Group>; 9] = [
            ("tuned", &|g| g.spec.subset.words()),
            ("numbers", &|g| g.said(|o| Some(thousands(o.tuned)))),
            ("released", &|g| g.said(|o| all_bits(o).map(bytes))),
            ("rate", &|g| g.rate()),
            ("test ppl", &|g| g.perplexity()),
            ("gain [nats]", &|g| gain(base, g).map_or(String::new(), |gain| format!("{gain:.4}"))),
            ("AUC", &|g| g.auc()),
            ("time [s]", &|g| g.show(|o| o.seconds, 1)),
            ("promised", &|g| g.promised()),
        ];
        let (under, epochs) = (under(grid, first.spec), first.spec.epochs);
        let caption = format!("{under}, {epochs} epochs (base model: perplexity {before})");
        let note = format!(
            "Mean ± SD [least, largest] over {} seed(s). Gain: by how much the loss of a held-out token fell. All rows have the same \
             budget, records and batch size, and tried as many learning rates.",
            grid.seeds
        );
        sheets.push(Sheet::of(caption, &columns, &here, note));
        findings.extend(finding(grid, base, &here));
    }
    (sheets, Vec::new(), findings)
}

/// The method with its budget and batch size, for a caption.
fn under(grid: &Grid, spec: &Spec) -> String {
    let name = spec.row.split(',').next().unwrap_or_default();
    let budget = match (&spec.method, spec.budget()) {
        (Goal::Nonprivate, _) => "without privacy".to_owned(),
        (_, (budget, "nats")) => format!("within {budget} nats of mutual information"),
        (_, (eps, _)) => format!("at ({eps}, {:e})-differential privacy", grid.delta),
    };
    format!("{name} {budget}, B = {}", spec.batch)
}

/// By how much the mean loss of a held-out token is below the base model's, over seeds that did not diverge.
fn gain(base: &Group, own: &Group) -> Option<f64> {
    let above = own.losses_above(base);
    (!above.is_empty()).then(|| -above.iter().sum::<f64>() / above.len() as f64)
}

/// Which set made the most of the budget, and how sure that is beside all weights.
fn finding(grid: &Grid, base: &Group, here: &[&Group]) -> Option<String> {
    let gains = here.iter().filter_map(|g| Some((*g, gain(base, g)?)));
    let (best, most) = gains.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let bits = best.outcomes().next().and_then(|o| o.bits).filter(|b| *b > 0);
    let each = bits.map_or(String::new(), |bits| format!(", {:.2e} for each of {bits} bits", most / bits as f64));
    let all = here.iter().find(|g| g.spec.subset.is_all());
    let beside = match all {
        Some(all) if std::ptr::eq(*all, best) => "that is, none of the sets was better than all weights".to_owned(),
        None => "all weights were not tried".to_owned(),
        Some(all) => {
            let sure = match interval(&best.losses_above(all), 0.05) {
                Some([_, high]) if high < 0.0 => "and the seeds agree",
                Some(_) => "but the seeds do not tell them apart",
                None => "from too few seeds to be sure",
            };
            let gained = gain(base, all).map_or("diverged".into(), |gain| format!("gained {gain:.4}"));
            format!(
                "all weights {gained}, {sure} (Student's 95 % interval of the difference in loss, paired over seeds)"
            )
        }
    };
    Some(format!(
        "{}: {} made the most of it, {most:.4} nats of loss a held-out token{each}; {beside}.",
        under(grid, best.spec),
        best.spec.subset.words()
    ))
}
