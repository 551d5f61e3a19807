package suite

import (
	"io/fs"

	"github.com/shoal-llm/shoal/internal/eval/score"
)

const (
	story   = "Read the text and answer the question in a few words.\n\n{context}\n\nQuestion: {input}\nAnswer:"
	article = "Read the article and answer the question in a few words. Write \"unanswerable\" if it does not " +
		"say.\n\n{context}\n\nQuestion: {input}\nAnswer:"
	passages = "Read the passages and answer the question in a few words.\n\n{context}\n\nQuestion: {input}\nAnswer:"
	summary  = "Read the text and write a summary of one page.\n\n{context}\n\nSummary:"
	meeting  = "Read the transcript and answer in one or more sentences.\n\n{context}\n\nQuery: {input}\nAnswer:"
	examples = "Continue like the examples.\n\n{context}\n{input}"
	counting = "Some of these paragraphs occur twice. Count the different ones.\n\n{context}\n\nThe number of different paragraphs is: "
	finding  = "Find the paragraph that the abstract was written from.\n\n{context}\n\nAbstract: {input}\n\nAnswer with \"Paragraph\" and " +
		"its number.\nAnswer: "
	coding = "Complete the code.\n{context}{input}Next line of code:\n"

	storyZh   = "阅读文章，用几个词回答问题。\n\n{context}\n\n问题：{input}\n回答："
	meetingZh = "阅读会议记录并写出总结。\n\n{context}\n\n总结："
	examplesZ = "参照例子判断新闻的类别。\n\n{context}\n{input}"
	findingZh = "找出摘要所属的段落。\n\n{context}\n\n摘要：{input}\n\n答案格式为“段落”加编号。\n答案："
)

var longBench = Suite{Name: "longbench", About: "question answering, summaries, examples, code: NAME.jsonl of LongBench or LongBench-E",
	read: readLongBench, Tasks: []Task{
		{"narrativeqa", "Single-Doc QA", "f1", 128, story, false, false},
		{"qasper", "Single-Doc QA", "f1", 128, article, false, false},
		{"multifieldqa_en", "Single-Doc QA", "f1", 64, story, false, false},
		{"multifieldqa_zh", "Single-Doc QA", "f1_zh", 64, storyZh, false, false},
		{"hotpotqa", "Multi-Doc QA", "f1", 32, passages, false, false},
		{"2wikimqa", "Multi-Doc QA", "f1", 32, passages, false, false},
		{"musique", "Multi-Doc QA", "f1", 32, passages, false, false},
		{"dureader", "Multi-Doc QA", "rouge_l_zh", 128, storyZh, false, false},
		{"gov_report", "Summ.", "rouge_l", 512, summary, false, false},
		{"qmsum", "Summ.", "rouge_l", 512, meeting, false, false},
		{"multi_news", "Summ.", "rouge_l", 512, summary, false, false},
		{"vcsum", "Summ.", "rouge_l_zh", 512, meetingZh, false, false},
		{"trec", "FS Learning", "class", 64, examples, true, true},
		{"triviaqa", "FS Learning", "f1", 32, examples, true, true},
		{"samsum", "FS Learning", "rouge_l", 128, examples, true, true},
		{"lsht", "FS Learning", "class", 64, examplesZ, true, true},
		{"passage_count", "Synthetic", "count", 32, counting, false, false},
		{"passage_retrieval_en", "Synthetic", "paragraph", 32, finding, false, false},
		{"passage_retrieval_zh", "Synthetic", "paragraph", 32, findingZh, false, false},
		{"lcc", "Code", "edit", 64, coding, true, false},
		{"repobench-p", "Code", "edit", 64, coding, true, false},
	}}

// readLongBench reads NAME.jsonl, or NAME_e.jsonl of LongBench-E.
func readLongBench(dir fs.FS, t *Task, limit int) ([]Question, error) {
	name := t.Name + ".jsonl"
	if _, err := fs.Stat(dir, name); err != nil {
		if _, err := fs.Stat(dir, t.Name+"_e.jsonl"); err == nil {
			name = t.Name + "_e.jsonl"
		}
	}
	return lines(dir, name, limit, func(line []byte) (Question, error) {
		var raw struct {
			ID      texts    `json:"_id"`
			Input   string   `json:"input"`
			Context string   `json:"context"`
			Answers texts    `json:"answers"`
			Classes []string `json:"all_classes"`
		}
		if err := object(line, &raw); err != nil {
			return Question{}, err
		}
		if err := need("context", raw.Context, "answers", raw.Answers.first()); err != nil {
			return Question{}, err
		}
		return Question{Task: t, ID: raw.ID.first(), Prompt: fill(t.Prompt, "{context}", raw.Context, "{input}", raw.Input),
			Ref: score.Reference{Answers: raw.Answers, Classes: raw.Classes}}, nil
	})
}
