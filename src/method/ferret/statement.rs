//! What a run gave away: from its settings and fires to releases, the event that accountants know, and the statement.

use super::settings::{BatchPer, Payload, Release, Settings};
use crate::error::Result;
use crate::privacy::event::{Event, Fires};
use crate::privacy::statement::{Released, Statement};

impl Settings {
    /// How many batches were seen by how many bits each, for the accountants.
    pub fn shared(&self, fires: &[(u32, u32)]) -> Vec<Fires> {
        let mut shared: Vec<Fires> = Vec::new();
        for step in fires.chunk_by(|a, b| a.0 == b.0) {
            let (steps, bits) = match self.batch_per {
                BatchPer::Step => (1, step.len() as u32),
                BatchPer::Bit => (step.len() as u64, 1),
            };
            match shared.iter_mut().find(|f| f.bits == bits) {
                Some(f) => f.steps += steps,
                None => shared.push(Fires { steps, bits }),
            }
        }
        shared
    }

    /// The event that has an (eps, delta): none for bits as they are, for true gradients, and where nothing fired.
    fn event(&self, fires: &[(u32, u32)]) -> Option<Event> {
        let (shared, sampling_rate) = (self.shared(fires), self.sampling_rate);
        match self.release {
            _ if self.payload == Payload::TrueGradient || shared.is_empty() => None,
            Release::Bit | Release::Rr { flip: 0.0, .. } => None,
            Release::Rr { flip, .. } => {
                Some(Event::SubsampledRandomisedResponse { flip, sampling_rate, fires: shared })
            }
            Release::Gaussian { dither } => Some(Event::dithered(dither, sampling_rate, &shared)),
        }
    }

    /// The statement of a run of `steps_run` steps in which `fires` were released; (eps, delta) is claimed at `delta`.
    pub fn statement(
        &self,
        fires: &[(u32, u32)],
        steps_run: u32,
        delta: f64,
        insecure: bool,
        logged: bool,
    ) -> Result<Statement> {
        let (count, fired_steps) = (fires.len() as u64, fires.chunk_by(|a, b| a.0 == b.0).count() as u64);
        let released = match (self.payload, self.release) {
            (Payload::TrueGradient, _) => Released::Gradients { count, bits_per_update: None },
            (_, Release::Bit) => Released::Bits { count, fired_steps },
            (_, Release::Rr { flip, .. }) => Released::FlippedBits { count, fired_steps, flip },
            (_, Release::Gaussian { dither }) => Released::DitheredScalars { count, fired_steps, dither },
        };
        let steps = steps_run.into();
        let mut statement =
            Statement::new(&*self.method, released, self.sampler, self.records, self.sampling_rate, steps);
        statement.insecure_seed = insecure;
        statement.private_logs = logged;
        statement.nats_planned = Some(self.epsilon);
        statement.charge_bits();
        if let Some(event) = self.event(fires) {
            statement.claim_spent(&event, delta)?;
        }
        Ok(statement.finish())
    }
}
