package eval

import (
	"fmt"
	"strings"
)

const (
	introDocuments = "Answer the question based on the given documents.\n"
	leadDocuments  = ""
)

// answering is RULER's question answering: the paragraph of the question among others, numbered, in
// random order. It fills most of the prompt; text fills the rest. Without paragraphs of a file, each document
// holds one needle of the bundled models' training data.
func answering(m *maker) parts {
	docs := m.paragraphs
	if len(docs) == 0 {
		docs = m.needleParagraphs(24)
	}
	var answerable []int
	for i, d := range docs {
		if len(d.Questions) > 0 {
			answerable = append(answerable, i)
		}
	}
	own := pick(m.rng, answerable)
	q := pick(m.rng, docs[own].Questions)
	room := int(m.shrink * float64(m.length-150) * 0.85 * 2.6) // characters
	chosen := []int{own}
	used := len(docs[own].Text)
	for _, i := range m.sample(len(docs), len(docs)) {
		if i != own && used+len(docs[i].Text) <= room {
			chosen = append(chosen, i)
			used += len(docs[i].Text)
		}
	}
	m.shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	var b strings.Builder
	for n, i := range chosen {
		fmt.Fprintf(&b, "Document %d:\n%s\n\n", n+1, strings.TrimSpace(docs[i].Text))
	}
	return parts{intro: introDocuments, events: []event{{0, b.String()}}, hay: text, depth: -1, ask: q.Question, lead: leadDocuments,
		answer: " " + q.Answers[0], wanted: q.Answers, anyOf: true}
}

// needleParagraphs returns n paragraphs of a few sentences, with a needle in each.
func (m *maker) needleParagraphs(n int) (out []Paragraph) {
	for _, k := range distinct(n, m.pair) {
		v := m.number(7)
		lines := make([]string, 4+m.below(4))
		for i := range lines {
			lines[i] = noiseText
		}
		lines[m.below(len(lines))] = fill(needleLine, "number", k, v)
		out = append(out, Paragraph{strings.Join(lines, ""), []ParagraphQuestion{{fill(askOne, "number", k, ""), []string{v}}}})
	}
	return out
}
