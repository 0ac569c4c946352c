//! The paper's head-room table for a model's own groups: how many there are, the ceiling they set, and how often one fires.

use crate::error::Result;
use crate::method::groups::{Grouping, Groups};
use crate::model::ParamId;
use crate::privacy::mi::{Accounting, Plan, Request};

/// One way to group, and what it leaves.
#[derive(Debug, serde::Serialize)]
pub struct Row {
    method: &'static str,
    groups: u64,
    ceiling_nats: f64,
    p: f64,
}

/// The variants of the paper on the tensors `tuned`, at the budget, records, batch and epochs of `request`. One that wants more groups than there
/// are tensors is left out.
pub fn rows(tuned: &[ParamId], accounting: Accounting, request: Request) -> Result<Vec<Row>> {
    let methods = ["ferret-max", "ferret-half", "ferret-quarter", "ferret-eighth", "ferret-2"];
    let named = methods.into_iter().filter_map(|method| {
        let groups = Groups::tuned(tuned, Grouping::of_method(method)?).ok()?;
        Some((method, groups.len() as u64))
    });
    named
        .map(|(method, groups)| {
            let plan = Plan::by(accounting, Request { groups, ..request })?;
            Ok(Row { method, groups, ceiling_nats: plan.ceiling, p: plan.p })
        })
        .collect()
}

/// As lines of text.
pub fn text(rows: &[Row], epsilon: f64) -> String {
    let mut text = format!(
        "\nThe head-room of this model's groups: the ceiling, and the probability of firing for {epsilon} nats\n\n  {:<16}{:>7}{:>14}{:>12}\n",
        "", "groups", "ceiling", "p"
    );
    for row in rows {
        text += &format!("  {:<16}{:>7}{:>14.3}{:>12.3e}\n", row.method, row.groups, row.ceiling_nats, row.p);
    }
    text
}
