// Package suite reads the published files of benchmarks from a folder. A suite has tasks; a task has
// its file, a prompt, the number of tokens of an answer and the metric of package score. Small files
// of the same form come with the package, so that every command can be tried without a download.
// They test the commands. They do not measure a model's ability.
//
//	longbench      NAME.jsonl, 21 tasks                   arXiv 2308.14508
//	longbench-v2   data.json                              arXiv 2412.15204
//	infinitebench  NAME.jsonl, 12 tasks                   arXiv 2402.13718
//	ruler          NAME/validation.jsonl, 13 tasks        arXiv 2404.06654
//	gsm8k          test.jsonl                             arXiv 2110.14168
//	math           test.jsonl, or folders of JSON files   arXiv 2103.03874
//
// The prompts are short forms with the parts in the published order: context, question, lead.
package suite
