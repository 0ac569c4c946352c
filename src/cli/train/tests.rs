//! What `train` takes where nothing is said is what the main job runs, so that it learns as much.

use super::Args;
use crate::cli::bars::Bars;
use crate::method::Method;
use crate::study::first::{self, Options};
use crate::study::world::World;
use clap::Parser;

#[derive(Parser)]
struct Call {
    #[command(flatten)]
    args: Args,
}

#[test]
fn defaults_are_the_main_jobs_for_every_method() {
    let options = Options::default();
    let world = World::embedded(1, options.candidates, 0).unwrap();
    let arms = first::arms(&world, &options, 1).unwrap();
    let mut seen = 0;
    for (arm, line) in [
        ("FERRET-MAX", "--method ferret-max --epsilon 1"),
        ("FERRET-EIGHTH", "--method ferret-eighth --epsilon 1"),
        ("FERRET-2", "--method ferret-2 --epsilon 1"),
        ("FERRET-2 flips, B = 2", "--method ferret-2 --epsilon 1 --batch 2 --release rr --dp-epsilon 1"),
        ("FERRET-k, B = 100", "--method ferret-k --dp-epsilon 1 --batch 100"),
        ("DPSGD", "--method dpsgd --dp-epsilon 1"),
        ("non-private", "--method nonprivate"),
    ] {
        // How many records are computed on at once decides speed, memory and rounding, not what is learnt.
        let line = format!("train {line} --model embedded --data embedded --out x --seed 1 --micro-batch 16");
        let args = Call::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}")).args;
        let settings = args.settings().unwrap();
        let records = world.members.len() as u64;
        let made: Method = settings(&args, &world.base.weights.config, records, &Bars::new(true, "")).unwrap();
        let job = arms.iter().find(|a| a.name == arm).and_then(|a| a.method.as_ref()).unwrap();
        assert_eq!(&made, job, "{arm}");
        seen += 1;
    }
    // All but the base model.
    assert_eq!(seen, arms.len() - 1);
}
