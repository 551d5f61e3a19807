package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	codeMaxBytes  = 10077 // the stream has reached MaxBytes
	codeNoStorage = 10047 // the account has reached its storage limit
	maxMessage    = maxPayload + recordHead + 64 + 512
)

// Streams of journals and their subject prefixes. A journal's name follows the prefix.
const (
	JobStream    = "SHOAL_JOBS"
	JobSubjects  = "shoal.jobs."
	FileStream   = "SHOAL_FILES"
	FileSubjects = "shoal.files."
)

// jetLog is a Log over a JetStream stream. Each journal is one subject, and Append expects the last
// sequence number of that subject.
type jetLog struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	prefix string // subject prefix; the journal's name follows
	limit  int64
	copies int
	pause  time.Duration // scanPause; shorter in tests
}

// OpenJetStream creates or opens the stream of jobs on the server of nc, and takes ownership of nc.
// The server must sync every write before it acknowledges it. A full stream refuses new messages
// and never discards old ones. With more than one replica, the leader answers reads: the nearest
// replica may lag and miss this process's own writes.
func OpenJetStream(ctx context.Context, nc *nats.Conn, maxBytes int64, replicas int) (Log, error) {
	return openStream(ctx, nc, JobStream, JobSubjects, "durable jobs and batches of Shoal", maxBytes, replicas)
}

// OpenFileStream is OpenJetStream for files. They have their own stream, so that reading the jobs
// does not read the files.
func OpenFileStream(ctx context.Context, nc *nats.Conn, maxBytes int64, replicas int) (FileLog, error) {
	return openStream(ctx, nc, FileStream, FileSubjects, "files of the batches of Shoal", maxBytes, replicas)
}

func openStream(ctx context.Context, nc *nats.Conn, name, prefix, about string, maxBytes int64, replicas int) (*jetLog, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("journal: JetStream: %w", err)
	}
	cfg := jetstream.StreamConfig{
		Name: name, Subjects: []string{prefix + ">"}, Description: about,
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		MaxBytes: maxBytes, MaxMsgSize: maxMessage, AllowDirect: replicas == 1, Replicas: replicas,
	}
	var stream jetstream.Stream
	err = retry(ctx, func(ctx context.Context) (err error) {
		stream, err = js.CreateOrUpdateStream(ctx, cfg)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("journal: stream %s: %w", name, err)
	}
	return &jetLog{nc: nc, js: js, stream: stream, name: name, prefix: prefix, limit: maxBytes, copies: replicas, pause: scanPause}, nil
}

func (l *jetLog) info(ctx context.Context) (info *jetstream.StreamInfo, err error) {
	err = l.retry(ctx, func(ctx context.Context) (err error) {
		info, err = l.stream.Info(ctx)
		return err
	})
	return info, err
}

func (l *jetLog) consumer(ctx context.Context, cfg jetstream.OrderedConsumerConfig) (c jetstream.Consumer, err error) {
	err = l.retry(ctx, func(ctx context.Context) (err error) {
		c, err = l.stream.OrderedConsumer(ctx, cfg)
		return err
	})
	return c, err
}

func (l *jetLog) Append(ctx context.Context, journal string, after uint64, data []byte) (uint64, error) {
	ack, err := l.js.PublishMsg(ctx, &nats.Msg{Subject: l.prefix + journal, Data: data},
		jetstream.WithExpectLastSequencePerSubject(after), jetstream.WithExpectStream(l.name), jetstream.WithRetryAttempts(0))
	if err == nil {
		return ack.Sequence, nil
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode {
		case jetstream.JSErrCodeStreamWrongLastSequence:
			return 0, fmt.Errorf("%w: %v", ErrConflict, err)
		case jetstream.JSErrCodeStreamWrongLastSequenceConstant:
			// The leader is processing another append to this journal, usually an unanswered one of
			// this writer. The journal may or may not hold the record.
			return 0, fmt.Errorf("journal: append to %s: another append is under way: %w", journal, err)
		case codeMaxBytes, codeNoStorage:
			return 0, fmt.Errorf("%w: %v", ErrFull, err)
		}
	}
	return 0, fmt.Errorf("journal: append to %s: %w", journal, l.noAnswer(err))
}

func (l *jetLog) retry(ctx context.Context, ask func(context.Context) error) error {
	return l.noAnswer(retry(ctx, ask))
}

// noAnswer adds the number of replicas of the log to the error of a missing answer.
func (l *jetLog) noAnswer(err error) error {
	if err != nil && unanswered(err) {
		return &noAnswerError{l.copies, err}
	}
	return err
}

func (l *jetLog) Read(ctx context.Context, journal string, after uint64, each func(uint64, []byte) error) error {
	for {
		var m *jetstream.RawStreamMsg
		err := l.retry(ctx, func(ctx context.Context) (err error) {
			m, err = l.stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(l.prefix+journal))
			return err
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("journal: read %s after %d: %w", journal, after, err)
		}
		if err := each(m.Sequence, m.Data); err != nil {
			return err
		}
		after = m.Sequence
	}
}

// scanPause is how long Scan waits for a message that should exist, before it reads the rest message by message.
const scanPause = 3 * time.Second

func (l *jetLog) Scan(ctx context.Context, each func(string, uint64, []byte) error) error {
	info, err := l.info(ctx)
	if err != nil {
		return fmt.Errorf("journal: scan: %w", err)
	}
	if info.State.Msgs == 0 {
		return nil
	}
	c, err := l.consumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy, InactiveThreshold: time.Minute})
	if err != nil {
		return fmt.Errorf("journal: scan: %w", err)
	}
	it, err := c.Messages(jetstream.PullMaxMessages(256))
	if err != nil {
		return fmt.Errorf("journal: scan: %w", err)
	}
	defer it.Stop()
	read, pauses, patience := uint64(0), 0, 1
	if info.Config.Replicas > 1 { // the replica that is read may have to catch up first
		patience = 10
	}
	for {
		m, err := it.Next(jetstream.NextMaxWait(l.pause))
		if errors.Is(err, nats.ErrTimeout) {
			if pauses++; pauses < patience {
				continue
			}
			return l.scanFrom(ctx, read, info.State.LastSeq, each)
		}
		if err != nil {
			return fmt.Errorf("journal: scan: %w", err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("journal: scan: %w", err)
		}
		if err := each(strings.TrimPrefix(m.Subject(), l.prefix), meta.Sequence.Stream, m.Data()); err != nil {
			return err
		}
		read = meta.Sequence.Stream
		// A damaged message stays pending. A lagging replica reports fewer pending messages.
		if meta.Sequence.Stream >= info.State.LastSeq || meta.NumPending == 0 && info.Config.Replicas == 1 {
			return ctx.Err()
		}
	}
}

// scanFrom is Scan for the messages after a number, which a consumer does not deliver: the server is slow, or a message
// is damaged. It ends at a damaged one; journals detect their missing records.
func (l *jetLog) scanFrom(ctx context.Context, after, last uint64, each func(string, uint64, []byte) error) error {
	for after < last {
		var m *jetstream.RawStreamMsg
		err := l.retry(ctx, func(ctx context.Context) (err error) {
			m, err = l.stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(l.prefix+">"))
			return err
		})
		var api *jetstream.APIError
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound), errors.As(err, &api) && !unanswered(err):
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("journal: scan after %d: %w", after, err)
		}
		if err := each(strings.TrimPrefix(m.Subject, l.prefix), m.Sequence, m.Data); err != nil {
			return err
		}
		after = m.Sequence
	}
	return ctx.Err()
}

// followBeat is the heartbeat interval of the server that Follow reads from. Two missing heartbeats
// make it choose another server. That server may belong to the process that this one replaces.
const followBeat = time.Second

func (l *jetLog) Follow(ctx context.Context, after uint64, each func(string, uint64)) error {
	c, err := l.consumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq: after + 1, HeadersOnly: true, InactiveThreshold: time.Minute})
	if err != nil {
		return fmt.Errorf("journal: follow: %w", err)
	}
	it, err := c.Messages(jetstream.PullMaxMessages(256), jetstream.PullHeartbeat(followBeat))
	if err != nil {
		return fmt.Errorf("journal: follow: %w", err)
	}
	defer context.AfterFunc(ctx, it.Stop)()
	defer it.Stop()
	for {
		m, err := it.Next()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("journal: follow: %w", err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("journal: follow: %w", err)
		}
		each(strings.TrimPrefix(m.Subject(), l.prefix), meta.Sequence.Stream)
	}
}

func (l *jetLog) Last(ctx context.Context, journal string) (seq uint64, data []byte, err error) {
	err = l.retry(ctx, func(ctx context.Context) error {
		m, err := l.stream.GetLastMsgForSubject(ctx, l.prefix+journal)
		if err == nil {
			seq, data = m.Sequence, m.Data
		}
		return err
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("journal: read the end of %s: %w", journal, err)
	}
	return seq, data, nil
}

func (l *jetLog) Journals(ctx context.Context) (out []string, err error) {
	var info *jetstream.StreamInfo
	err = l.retry(ctx, func(ctx context.Context) (err error) {
		info, err = l.stream.Info(ctx, jetstream.WithSubjectFilter(l.prefix+">"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("journal: stream %s: %w", l.name, err)
	}
	for subject := range info.State.Subjects {
		out = append(out, strings.TrimPrefix(subject, l.prefix))
	}
	return out, nil
}

func (l *jetLog) Drop(ctx context.Context, journal string) error {
	err := l.retry(ctx, func(ctx context.Context) error {
		return l.stream.Purge(ctx, jetstream.WithPurgeSubject(l.prefix+journal))
	})
	if err != nil {
		return fmt.Errorf("journal: drop %s: %w", journal, err)
	}
	return nil
}

func (l *jetLog) DropThrough(ctx context.Context, journal string, seq uint64) error {
	err := l.retry(ctx, func(ctx context.Context) error {
		return l.stream.Purge(ctx, jetstream.WithPurgeSubject(l.prefix+journal), jetstream.WithPurgeSequence(seq+1))
	})
	if err != nil {
		return fmt.Errorf("journal: drop %s up to message %d: %w", journal, seq, err)
	}
	return nil
}

func (l *jetLog) Clear(ctx context.Context) error {
	if err := l.retry(ctx, func(ctx context.Context) error { return l.stream.Purge(ctx) }); err != nil {
		return fmt.Errorf("journal: clear: %w", err)
	}
	return nil
}

func (l *jetLog) Usage(ctx context.Context) (Usage, error) {
	info, err := l.info(ctx)
	if err != nil {
		return Usage{}, fmt.Errorf("journal: stream %s: %w", l.name, err)
	}
	return Usage{Bytes: int64(info.State.Bytes), Limit: l.limit, Last: info.State.LastSeq}, nil
}

func (l *jetLog) Close() error {
	l.nc.Close()
	return nil
}
