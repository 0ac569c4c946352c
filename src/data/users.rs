//! One example a person: the unit of a guarantee is whatever is sampled and clipped as one.
//!
//! With [`Unit::User`] every record names its `"user"`, and all that a user gives becomes one example: the user's first records, end
//! to end in the file's order, end-of-text between them, as many tokens as the context holds. The sampler then draws users, a user's
//! gradient is one sample's and is clipped as one, and a data set without a user differs from one with it in exactly one example. So
//! every method's accounting, which is about one example, is about one user, whatever the user wrote: nothing else has to change.
//!
//! The rule looks at nobody else's records. What does not fit is left out and counted; no token is predicted across two records.

use super::Example;
use std::collections::HashMap;

/// What one example stands for, and so what a guarantee is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A record.
    #[default]
    Record,
    /// Everything that one `"user"` gave, at most `most` records of it.
    User {
        /// Further records are left out; none: as many as the context holds.
        most: Option<usize>,
    },
}

/// Users in the order of their first records, and what was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedUsers {
    /// One a user.
    pub examples: Vec<Example>,
    /// Their names.
    pub names: Vec<String>,
    /// Records of which nothing is used: beyond the cap, or beyond the context.
    pub left_out: usize,
    /// Tokens cut off a user's last record that is used.
    pub tokens_cut: usize,
}

/// Put the records of each user end to end.
pub(super) fn pack(
    records: Vec<(String, Example)>,
    most: Option<usize>,
    context: usize,
    separator: Option<u32>,
) -> PackedUsers {
    let mut packed = PackedUsers::default();
    let mut known: HashMap<String, usize> = HashMap::new();
    // Records used so far, a user.
    let mut used: Vec<usize> = Vec::new();
    for (user, record) in records {
        let next = packed.examples.len();
        let at = *known.entry(user.clone()).or_insert(next);
        if at == next {
            packed.examples.push(Example::default());
            packed.names.push(user);
            used.push(0);
        }
        let example = &mut packed.examples[at];
        let full = example.ids.len() + usize::from(used[at] > 0 && separator.is_some()) >= context;
        if most.is_some_and(|most| used[at] >= most) || (used[at] > 0 && full) {
            packed.left_out += 1;
            continue;
        }
        if used[at] > 0
            && let Some(separator) = separator
            && example.ids.last() != Some(&separator)
        {
            example.ids.push(separator);
            example.learn.push(false);
        }
        let room = context - example.ids.len();
        packed.tokens_cut += record.ids.len().saturating_sub(room);
        example.ids.extend(record.ids.iter().take(room));
        example.learn.extend(record.learn.iter().take(room));
        used[at] += 1;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(list: &[(&str, &[u32])]) -> Vec<(String, Example)> {
        list.iter().map(|(user, ids)| (user.to_string(), Example::all(ids.to_vec()))).collect()
    }

    #[test]
    fn a_user_is_one_example_in_the_files_order() {
        let all = records(&[("b", &[1, 2]), ("a", &[3, 4, 5]), ("b", &[6, 7]), ("b", &[8])]);
        let packed = pack(all.clone(), None, 100, Some(9));
        assert_eq!(packed.examples.len(), 2);
        assert_eq!(packed.names, ["b", "a"]);
        assert_eq!(packed.examples[0].ids, [1, 2, 9, 6, 7, 9, 8]);
        // A separator and a record's first token are never predicted.
        assert_eq!(packed.examples[0].learn, [false, true, false, false, true, false, false]);
        assert_eq!(packed.examples[1], all[1].1);
        assert_eq!((packed.left_out, packed.tokens_cut), (0, 0));
        assert_eq!(pack(all, None, 100, None).examples[0].ids, [1, 2, 6, 7, 8]);
    }

    #[test]
    fn caps_and_the_context_leave_out_and_count() {
        let all = records(&[("a", &[1, 2]), ("a", &[3, 4]), ("a", &[5, 6]), ("b", &[7, 8])]);
        let capped = pack(all.clone(), Some(1), 100, Some(9));
        assert_eq!(capped.examples.iter().map(|e| e.ids.clone()).collect::<Vec<_>>(), [vec![1, 2], vec![7, 8]]);
        assert_eq!(capped.left_out, 2);
        let short = pack(all, None, 4, Some(9));
        assert_eq!(short.examples[0].ids, [1, 2, 9, 3]);
        assert_eq!((short.left_out, short.tokens_cut), (1, 1));
        assert!(short.examples.iter().all(|e| e.ids.len() == e.learn.len() && e.ids.len() <= 4));
    }

    /// The heart of it: whatever a user's records are, taking them all away changes no other example.
    #[test]
    fn without_a_user_exactly_one_example_is_missing() {
        let secret = crate::rng::Secret::insecure(5);
        let mut rng = secret.stream(crate::rng::SecretDomain::Sampling, 0, 0);
        for _ in 0..200 {
            let all: Vec<(String, Example)> = (0..rng.below(12) + 1)
                .map(|_| {
                    let ids: Vec<u32> = (0..rng.below(6)).map(|_| rng.below(50) as u32).collect();
                    (format!("u{}", rng.below(4)), Example::all(ids))
                })
                .collect();
            let (most, context) = (Some(rng.below(3) as usize + 1).filter(|&m| m < 3), rng.below(9) as usize + 2);
            let packed = pack(all.clone(), most, context, Some(49));
            let gone = all[rng.below(all.len() as u64) as usize].0.clone();
            let users = all.iter().fold(Vec::new(), |mut seen: Vec<&String>, (user, _)| {
                if !seen.contains(&user) {
                    seen.push(user);
                }
                seen
            });
            let place = users.iter().position(|user| **user == gone).unwrap();
            let without =
                pack(all.iter().filter(|(user, _)| *user != gone).cloned().collect(), most, context, Some(49));
            let mut rest = packed.examples;
            rest.remove(place);
            assert_eq!(without.examples, rest);
        }
    }
}
