//! Sinks in other languages, in the whole host: they deliver, refuse one document, are tried again, build beside what readers
//! see, and purge.

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

/// What a server keeps.
#[derive(Default)]
struct Kept {
    /// What readers see of each destination, by id.
    seen: BTreeMap<String, Documents>,
    /// The place of which that is.
    shown: BTreeMap<String, String>,
    /// What is built beside it, as `destination@place`.
    built: BTreeMap<String, Documents>,
    purged: Vec<String>,
    /// It is busy when a destination is written to for the first time.
    busy: Vec<String>,
    /// What was done with places.
    told: Vec<String>,
}

type Documents = BTreeMap<String, Value>;

impl Kept {
    /// Answers `/destination`, `/destination@place`, and the same with an id behind it.
    fn answer(&mut self, request: &Received) -> Reply {
        let target = request.target.trim_start_matches('/');
        let (whole, id) = target.split_once('/').map_or((target, None), |(whole, id)| (whole, Some(id)));
        let (destination, place) =
            whole.split_once('@').map_or((whole, None), |(name, place)| (name, Some(place)));
        match (id, place) {
            (Some(id), _) => self.document(request, destination, place.map(|_| whole), id),
            (None, Some(place)) => self.place(&request.method, destination, whole, place),
            (None, None) if request.method == "DELETE" => {
                self.seen.remove(destination);
                self.purged.push(destination.to_owned());
                Reply::status(204)
            }
            (None, None) => Reply::status(405),
        }
    }

    fn document(&mut self, request: &Received, destination: &str, built: Option<&str>, id: &str) -> Reply {
        let shown = self.shown.get(destination).map(|place| format!("{destination}@{place}"));
        let documents = match built.filter(|built| shown.as_deref() != Some(built)) {
            None => self.seen.entry(destination.to_owned()).or_default(),
            Some(built) => match self.built.get_mut(built) {
                Some(documents) => documents,
                None => return Reply::status(410),
            },
        };
        match request.method.as_str() {
            "PUT" if id == "1" && !self.busy.iter().any(|busy| busy == destination) => {
                self.busy.push(destination.to_owned());
                Reply::status(503)
            }
            "PUT" if request.body.windows(4).any(|bytes| bytes == b"boom") => Reply::status(422),
            "PUT" => {
                let body = serde_json::from_slice(&request.body).unwrap();
                let before = documents.insert(id.to_owned(), body);
                Reply::status(if before.is_none() { 201 } else { 200 })
            }
            "DELETE" => Reply::status(if documents.remove(id).is_none() { 404 } else { 204 }),
            _ => Reply::status(405),
        }
    }

    fn place(&mut self, method: &str, destination: &str, whole: &str, place: &str) -> Reply {
        self.told.push(format!("{method} {destination} {}", place.split('-').next().unwrap()));
        match method {
            "PUT" => {
                self.built.insert(whole.to_owned(), Documents::new());
                let is_seen = self.seen.get(destination).is_some_and(|documents| !documents.is_empty());
                Reply::with_body(200, if is_seen { "seen" } else { "not seen" })
            }
            "POST" if self.shown.get(destination).is_some_and(|shown| shown == place) => Reply::status(204),
            "POST" => {
                let Some(documents) = self.built.remove(whole) else { return Reply::status(410) };
                self.seen.insert(destination.to_owned(), documents);
                self.shown.insert(destination.to_owned(), place.to_owned());
                Reply::status(204)
            }
            "DELETE" => Reply::status(if self.built.remove(whole).is_none() { 404 } else { 204 }),
            _ => Reply::status(405),
        }
    }

    fn of(&self, destination: &str) -> Documents {
        self.seen.get(destination).cloned().unwrap_or_default()
    }

    /// The place of a destination that a generation is built in, and what is in it.
    fn built(&self, destination: &str, generation: u8) -> Option<(&str, &Documents)> {
        let prefix = format!("{destination}@{generation}-");
        self.built
            .iter()
            .find(|(whole, _)| whole.starts_with(&prefix))
            .map(|(whole, there)| (whole.as_str(), there))
    }
}

async fn expected(scene: &Scene) -> BTreeMap<String, Value> {
    let query = format!("select id::text, document::text from ({PRODUCT_DOCUMENTS}) as d");
    let rows = scene.client.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap())).collect()
}

/// Two generations more: one that is given up, and one that readers are switched to.
async fn rebuilt(scene: &Scene, names: &[String], kept: &Mutex<Kept>) {
    let ask = |arguments: &[&str]| {
        let asked = scene.host.run(&[&["backfill"], arguments].concat()).unwrap();
        assert!(asked.status.success(), "{asked:?}");
    };
    let wait = async |what: &str, holds: &dyn Fn(&Kept, &str) -> bool| {
        wait_until(what, SOON, async || {
            let kept = kept.lock().unwrap();
            Ok(names.iter().all(|name| holds(&kept, name)))
        })
        .await
        .unwrap_or_else(|error| {
            panic!("{error:#}\n{:#?}\n{}", kept.lock().unwrap().told, scene.host.log_tail())
        });
    };
    let done = async |generation: i64| {
        let query = "select count(*) from anabranch.mapping where name like 'shelf-%' and built = $1 and building is null";
        wait_until("the generation to be seen", SOON, async || {
            let seen: i64 = scene.client.query_one(query, &[&generation]).await?.get(0);
            Ok(usize::try_from(seen)? == names.len())
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    };
    done(1).await;
    // Only a rebuild makes it right, and only when readers are switched.
    let stale = serde_json::json!("stale");
    for documents in kept.lock().unwrap().seen.values_mut() {
        documents.insert("3".to_owned(), stale.clone());
    }
    ask(&["rate", "2"]);
    for (generation, title) in [(2, "in the second"), (3, "in the third")] {
        ask(&["request", "public.products"]);
        wait("rows in a place", &|kept, name| {
            kept.built(name, generation).is_some_and(|(_, documents)| !documents.is_empty())
        })
        .await;
        let change = format!("update public.products set active = true, name = '{title}' where id = 4");
        scene.client.batch_execute(&change).await.unwrap();
        wait("a live change at both", &|kept, name| {
            let has =
                |documents: &Documents| documents.get("4").is_some_and(|document| document["title"] == title);
            has(&kept.of(name)) && kept.built(name, generation).is_some_and(|(_, documents)| has(documents))
        })
        .await;
        assert!(
            names.iter().all(|name| kept.lock().unwrap().of(name)["3"] == stale),
            "readers see nothing of it"
        );
    }
    wait("the second to be given up", &|kept, name| kept.built(name, 2).is_none()).await;
    ask(&["rate", "none"]);
    done(3).await;
    let mut told = std::mem::take(&mut kept.lock().unwrap().told);
    told.sort();
    told.dedup();
    let mut expected = Vec::new();
    for name in names {
        for (method, generations) in [("PUT", &[1, 2, 3][..]), ("POST", &[1, 3]), ("DELETE", &[2])] {
            expected.extend(generations.iter().map(|generation| format!("{method} {name} {generation}")));
        }
    }
    expected.sort();
    assert_eq!(told, expected, "begun, switched to, and given up");
    assert!(kept.lock().unwrap().built.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn sinks_in_every_language_deliver_rebuild_refuse_and_purge() {
    let mut scene = Scene::new(20, 1).await;
    let kept = Arc::new(Mutex::new(Kept::default()));
    let served = Arc::clone(&kept);
    let server = Receiver::start(move |request, _| served.lock().unwrap().answer(request)).await;
    let names: Vec<_> = languages().into_iter().map(|language| format!("shelf-{language}")).collect();
    let mut config = "[backfill]\nchunk_size = 2\n".to_owned();
    for name in &names {
        scene.plugin(name, &Guest::new(format!("plugins/fixtures/{name}")));
        config += &format!(
            "{}[plugins.{name}.grants]\nhttp = [\"{url}\"]\nprivate_addresses = true\n\
             [sink.{name}]\nkind = \"plugin\"\nplugin = \"{name}\"\nconfig = {{ url = \"{url}\" }}\n\
             [[map]]\nname = \"{name}\"\ntransform = \"product-search\"\nsink = \"{name}\"\ndestination = \"{name}\"\n\
             on_failure = \"quarantine\"\n\
             [sink.wrong-{name}]\nkind = \"plugin\"\nplugin = \"{name}\"\nconfig = {{ url = \"{url}\", uri = \"marker-4711\" }}\n\
             [[map]]\nname = \"wrong-{name}\"\ntable = \"public.others\"\ntransform = \"product-search\"\n\
             sink = \"wrong-{name}\"\ndestination = \"wrong-{name}\"\n",
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
    let others = "create table public.others (like public.products including all); \
                  insert into public.others select * from public.products where id = 3";
    scene.client.batch_execute(others).await.unwrap();
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
    rebuilt(&scene, &names, &kept).await;
    settled(&scene, &expected(&scene).await).await;

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
    assert_eq!(purged, names);

    for name in &names {
        let error = scene.error_of(&format!("wrong-{name}")).await;
        assert!(error.contains("uri") && error.contains("(settings, fatal)"), "{error}");
        assert!(!scene.host.log().contains("marker-4711") && !error.contains("marker-4711"), "{error}");
    }
}
