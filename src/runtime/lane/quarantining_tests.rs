use std::sync::{Arc, Mutex};

use crate::{
    model::Operation,
    sink::{Capabilities, Sink},
};

use super::*;

/// Refuses a batch as a whole for one bad document, as no sink that comes along does.
#[derive(Debug, Default)]
struct Whole {
    took: Mutex<Vec<String>>,
    calls: Mutex<usize>,
}

#[async_trait::async_trait]
impl Sink for Whole {
    fn kind(&self) -> &'static str {
        "whole"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn open(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn deliver(
        &self,
        documents: &Documents,
        _progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        *self.calls.lock().unwrap() += 1;
        if documents.iter().any(|view| view.body.contains("bad")) {
            return Err(Failure::new(FailureClass::Poison, "bad", "one of them is bad"));
        }
        let odd = documents.iter().enumerate().filter(|(_, view)| view.body.contains("odd"));
        let rejected: Vec<Rejected> = odd
            .map(|(index, _)| Rejected { index, failure: Failure::new(FailureClass::Poison, "odd", "odd") })
            .collect();
        let taken = documents.iter().filter(|view| !view.body.contains("odd"));
        self.took.lock().unwrap().extend(taken.map(|view| view.id.to_owned()));
        Ok(rejected)
    }

    async fn purge(&self, _destination: &str, _progress: Option<&Progress>) -> Result<(), Failure> {
        Ok(())
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

fn documents(bodies: &[&str]) -> Documents {
    let mut documents = Documents::new("public.t", Origin::Stream, 1);
    for (id, body) in bodies.iter().enumerate() {
        documents.upsert("d", &id.to_string(), body);
        assert_eq!(documents.entries[id].source, Operation::Insert);
    }
    documents
}

#[tokio::test]
async fn a_batch_that_is_refused_whole_is_delivered_but_for_the_culprits_in_order() {
    let sink = Arc::new(Whole::default());
    let mut bodies = vec!["{}"; 200];
    (bodies[17], bodies[18], bodies[150], bodies[199]) = ("bad", "odd", "bad", "bad");
    let rejected =
        in_parts(&Outlet::new(Arc::clone(&sink) as Arc<dyn Sink>), &documents(&bodies)).await.unwrap();
    let seen: Vec<_> = rejected.iter().map(|one| (one.index, one.failure.code.as_str())).collect();
    assert_eq!(seen, [(17, "bad"), (18, "odd"), (150, "bad"), (199, "bad")]);
    let took = sink.took.lock().unwrap().clone();
    let others: Vec<String> =
        (0..200).filter(|id| ![17, 18, 150, 199].contains(id)).map(|id| id.to_string()).collect();
    assert_eq!(took, others, "each once, in order");
    assert!(*sink.calls.lock().unwrap() < 80, "{sink:?}");
}

#[tokio::test]
async fn a_sink_that_refuses_everything_is_at_fault_itself() {
    let sink = Arc::new(Whole::default());
    let outlet = Outlet::new(sink as Arc<dyn Sink>);
    let failure = in_parts(&outlet, &documents(&["bad"; 300])).await.unwrap_err();
    assert_eq!((failure.code.as_str(), failure.class), ("sink-refuses-in-a-row", FailureClass::Poison));
}
