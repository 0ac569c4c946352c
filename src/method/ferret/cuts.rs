//! Groups as a transcript writes them: how many of the tuned tensors each takes, in checkpoint order.
//!
//! Every grouping of the paper cuts the list of parameters into consecutive runs, so that `148x1` (FERRET-MAX on GPT-2) or `18x8,1x4`
//! (EIGHTH) says everything, and a replay depends on nothing but the file.

use crate::error::{Error, Result};
use crate::model::ParamId;
use serde::{Deserialize, Serialize};

/// The number of tensors of each group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cuts(Vec<usize>);

/// More groups than any decoder has tensors.
const MOST: usize = 1 << 20;

impl Cuts {
    /// The grouping with these members. Refused unless they are consecutive and cover parameters 0, 1, 2, ...
    pub fn of(members: &[Vec<ParamId>]) -> Result<Self> {
        let all: Vec<_> = (0..members.iter().map(Vec::len).sum()).map(ParamId).collect();
        Self::over(&all, members)
    }

    /// The grouping of the tuned parameters with these members. Refused unless these are runs of them that cover them all.
    pub fn over(tuned: &[ParamId], members: &[Vec<ParamId>]) -> Result<Self> {
        if members.iter().any(Vec::is_empty) || !members.iter().flatten().eq(tuned) {
            return Err(Error::usage(
                "groups must be runs of tensors in checkpoint order, every tuned tensor in one: a transcript cannot name others",
            ));
        }
        Ok(Self(members.iter().map(Vec::len).collect()))
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: a grouping has at least one group.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of tensors in all groups.
    pub fn tensors(&self) -> usize {
        self.0.iter().sum()
    }

    /// The members of each group among the parameters `tuned`.
    pub fn members(&self, tuned: &[ParamId]) -> Result<Vec<Vec<ParamId>>> {
        let (total, have) = (self.tensors(), tuned.len());
        if total != have {
            return Err(Error::usage(format!(
                "the groups cover {total} tensors, of the model {have} are tuned: is it another model?"
            )));
        }
        let mut next = 0;
        let run = |&n: &usize| {
            next += n;
            tuned[next - n..next].to_vec()
        };
        Ok(self.0.iter().map(run).collect())
    }
}

impl From<Cuts> for String {
    fn from(g: Cuts) -> String {
        let runs = g.0.chunk_by(|a, b| a == b);
        runs.map(|run| format!("{}x{}", run.len(), run[0])).collect::<Vec<_>>().join(",")
    }
}

impl TryFrom<String> for Cuts {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let broken = || {
            format!("\"{text}\" does not name groups: expected runs like 18x8,1x4 (18 groups of 8 tensors, one of 4)")
        };
        let mut sizes = Vec::new();
        for run in text.split(',') {
            let (count, size) = run.split_once('x').ok_or_else(broken)?;
            let (count, size): (usize, usize) =
                (count.parse().map_err(|_| broken())?, size.parse().map_err(|_| broken())?);
            if count == 0 || size == 0 || count > MOST - sizes.len() || size > MOST {
                return Err(broken());
            }
            sizes.extend(std::iter::repeat_n(size, count));
        }
        Ok(Self(sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(groups: &[&[usize]]) -> Vec<Vec<ParamId>> {
        groups.iter().map(|g| g.iter().map(|&i| ParamId(i)).collect()).collect()
    }

    #[test]
    fn text_and_back() {
        let g = Cuts::of(&ids(&[&[0, 1], &[2, 3], &[4]])).unwrap();
        assert_eq!(String::from(g.clone()), "2x2,1x1");
        assert_eq!(Cuts::try_from("2x2,1x1".to_owned()).unwrap(), g);
        for bad in ["", "x", "0x1", "1x0", "3", "1x1,", "-1x1", "9999999999x1", "1x9999999999"] {
            assert!(Cuts::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_a_subset() {
        let tuned = [1, 4, 5].map(ParamId);
        let members = ids(&[&[1, 4], &[5]]);
        let cuts = Cuts::over(&tuned, &members).unwrap();
        assert_eq!(String::from(cuts.clone()), "1x2,1x1");
        assert_eq!(cuts.members(&tuned).unwrap(), members);
        assert!(cuts.members(&tuned[1..]).is_err());
        for bad in [&ids(&[&[1], &[5]])[..], &ids(&[&[4, 1], &[5]]), &ids(&[&[1, 4], &[5], &[6]])] {
            assert!(Cuts::over(&tuned, bad).is_err());
        }
    }

    #[test]
    fn only_consecutive_runs() {
        for bad in [&ids(&[&[1], &[0]])[..], &ids(&[&[0], &[2]]), &ids(&[&[0], &[]]), &ids(&[&[0], &[0]])] {
            assert!(Cuts::of(bad).is_err());
        }
    }
}
