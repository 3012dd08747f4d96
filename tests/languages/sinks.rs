//! Sinks in other languages, in the whole host: they deliver, refuse one document, are tried again, and purge.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use serde_json::Value;
use testkit::{guests::Guest, shop::PRODUCT_DOCUMENTS, wait_until};

use crate::{
    capabilities::{languages, patient},
    receiver::{Received, Receiver, Reply},
    scene::{SOON, Scene, products},
};

/// What a server keeps: documents by `/destination/id`.
#[derive(Default)]
struct Kept {
    documents: BTreeMap<String, Value>,
    purged: Vec<String>,
    /// It is busy when a place is written to for the first time.
    busy: Vec<String>,
}

impl Kept {
    fn answer(&mut self, request: &Received) -> Reply {
        let place = request.target.clone();
        let document = place.matches('/').count() == 2;
        match request.method.as_str() {
            "PUT" if place.ends_with("/1") && !self.busy.contains(&place) => {
                self.busy.push(place);
                Reply::status(503)
            }
            "PUT" if request.body.windows(4).any(|bytes| bytes == b"boom") => Reply::status(422),
            "PUT" => {
                let body = serde_json::from_slice(&request.body).unwrap();
                let before = self.documents.insert(place, body);
                Reply::status(if before.is_none() { 201 } else { 200 })
            }
            "DELETE" if document => {
                Reply::status(if self.documents.remove(&place).is_none() { 404 } else { 204 })
            }
            "DELETE" => {
                self.documents.retain(|known, _| !known.starts_with(&format!("{place}/")));
                self.purged.push(place);
                Reply::status(204)
            }
            _ => Reply::status(405),
        }
    }

    fn of(&self, destination: &str) -> BTreeMap<String, Value> {
        let prefix = format!("/{destination}/");
        let of =
            |(place, body): (&String, &Value)| Some((place.strip_prefix(&prefix)?.to_owned(), body.clone()));
        self.documents.iter().filter_map(of).collect()
    }
}

async fn expected(scene: &Scene) -> BTreeMap<String, Value> {
    let query = format!("select id::text, document::text from ({PRODUCT_DOCUMENTS}) as d");
    let rows = scene.client.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sinks_in_every_language_deliver_refuse_and_purge() {
    let mut scene = Scene::new(20, 1).await;
    let kept = Arc::new(Mutex::new(Kept::default()));
    let served = Arc::clone(&kept);
    let server = Receiver::start(move |request, _| served.lock().unwrap().answer(request)).await;
    let names: Vec<_> = languages().into_iter().map(|language| format!("shelf-{language}")).collect();
    let mut config = String::new();
    for name in &names {
        scene.plugin(name, &Guest::new(format!("plugins/fixtures/{name}")));
        config += &format!(
            "{}[plugins.{name}.grants]\nhttp = [\"{url}\"]\nprivate_addresses = true\n\
             [sink.{name}]\nkind = \"plugin\"\nplugin = \"{name}\"\nconfig = {{ url = \"{url}\" }}\n\
             [[map]]\nname = \"{name}\"\ntransform = \"product-search\"\nsink = \"{name}\"\ndestination = \"{name}\"\n\
             on_failure = \"quarantine\"\n\
             [sink.wrong-{name}]\nkind = \"plugin\"\nplugin = \"{name}\"\nconfig = {{ url = \"{url}\", uri = \"marker-4711\" }}\n\
             [[map]]\nname = \"wrong-{name}\"\ntransform = \"product-search\"\nsink = \"wrong-{name}\"\n\
             destination = \"wrong-{name}\"\n",
            patient(name),
            url = server.url("")
        );
    }
    scene.plugin("product-search", &products());
    scene.config(&config);
    // Larger than what one write of a request's body may have.
    let change = "update public.products set active = true, description = repeat('ß', 20000) where id = 3; \
                  update public.products set active = id <> 2 where id in (1, 2, 4)";
    scene.client.batch_execute(change).await.unwrap();
    scene.host.start().unwrap();

    let settled = async |scene: &Scene, want: &BTreeMap<String, Value>| {
        for name in &names {
            wait_until("its documents", SOON, async || Ok(kept.lock().unwrap().of(name) == *want))
                .await
                .unwrap_or_else(|error| {
                    let there = kept.lock().unwrap().of(name).into_keys().collect::<Vec<_>>();
                    panic!("{name}: {error:#}: {there:?} of {:?}\n{}", want.keys(), scene.host.log_tail())
                });
        }
    };
    let want = expected(&scene).await;
    assert!(want.len() > 5 && want.contains_key("1") && want.contains_key("3") && !want.contains_key("2"));
    settled(&scene, &want).await;
    assert_eq!(kept.lock().unwrap().busy.len(), names.len(), "what was busy is tried again");

    let change = "begin; update public.products set name = 'boom', active = true where id = 2; \
                  update public.products set active = false where id = 4; \
                  update public.products set price = 9 where id = 3; commit";
    scene.client.batch_execute(change).await.unwrap();
    let mut want = expected(&scene).await;
    want.remove("2");
    settled(&scene, &want).await;
    let query = "select coalesce(string_agg(concat_ws(' ', mapping, row_id, stage, code), ', ' order by mapping), '') \
                 from anabranch.quarantine";
    let refused =
        names.iter().map(|name| format!("{name} 2 delivery refused")).collect::<Vec<_>>().join(", ");
    wait_until("what was refused to be kept", SOON, async || Ok(scene.text(query).await == refused))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));

    scene.client.batch_execute("truncate public.products cascade").await.unwrap();
    settled(&scene, &BTreeMap::new()).await;
    let mut purged = kept.lock().unwrap().purged.clone();
    purged.sort();
    purged.dedup();
    assert_eq!(purged, names.iter().map(|name| format!("/{name}")).collect::<Vec<_>>());

    for name in &names {
        let error = scene.error_of(&format!("wrong-{name}")).await;
        assert!(error.contains("uri") && error.contains("(settings, fatal)"), "{error}");
        assert!(!scene.host.log().contains("marker-4711") && !error.contains("marker-4711"), "{error}");
    }
}
