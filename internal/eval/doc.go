// Package eval measures the accuracy of a model on long prompts, and the loss by a cache policy. It runs
// RULER-style tasks of any length, scored by exact match of whole answers, against any OpenAI-compatible
// server or an embedded cluster.
//
//	corpus  -> Generator -> Sample{Prompt ids, Answer ids}     generate.go, tasks.go
//	Sample  -> Client    -> text                               client.go, embed.go
//	text    -> Score     -> Record, one JSON line each         score.go, store.go
//	Records -> Summary   -> table, plots                       summary.go, plot.go
//
// The tasks use the phrases that the bundled model was trained on (train/gen.py). The
// reference numbers for them come from train/evalpol.py.
package eval
