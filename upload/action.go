package upload

import (
	"context"
	"errors"

	"github.com/walsidecar/walsidecar/upload/store"
)

// ActionKind is what a Core asks for.
type ActionKind uint8

// The kinds of actions.
const (
	// ActPut puts an object that must not exist.
	ActPut ActionKind = iota + 1
	// ActHead looks whether an object exists whose put had no clear answer.
	ActHead
	// ActCommit replaces the manifest, if it is the expected one.
	ActCommit
	// ActReadManifest reads the manifest, to settle a commit without a clear answer.
	ActReadManifest
	// ActGet reads an object whole.
	ActGet
	// ActWork computes, and may read objects; it changes nothing.
	ActWork
	// ActDelete deletes doomed objects.
	ActDelete
)

// String is the kind in lower case words.
func (k ActionKind) String() string {
	return [...]string{"none", "put", "head", "commit", "read manifest", "get", "work", "delete"}[k]
}

// Action is something that a Core asks for. It is carried out with Do, by any
// goroutine, and its result given to Core.Done, once. Nobody else changes it.
type Action struct {
	Kind ActionKind
	Key  string // empty: of work and of deletes
	// Class says whose budget of requests it takes.
	Class store.Class

	body    []byte
	version store.Version
	keys    []string
	work    func(context.Context, store.Store) (any, error)

	put *put // what ActPut and ActHead are about
}

// Result is the outcome of an action.
type Result struct {
	err     error
	version store.Version
	body    []byte
	bytes   int64
	value   any
}

// Do carries the action out on the store.
func (a *Action) Do(ctx context.Context, s store.Store) (r Result) {
	ctx = store.WithClass(ctx, a.Class)
	switch a.Kind {
	case ActPut:
		r.version, r.err = s.PutIfAbsent(ctx, a.Key, a.body)
	case ActHead:
		var info store.Info
		info, r.err = s.Head(ctx, a.Key)
		r.bytes = info.SizeBytes
	case ActCommit:
		r.version, r.err = s.PutIfMatch(ctx, a.Key, a.body, a.version)
	case ActReadManifest, ActGet:
		r.body, r.version, r.err = s.Get(ctx, a.Key)
	case ActWork:
		r.value, r.err = a.work(ctx, s)
	case ActDelete:
		r.err = s.Delete(ctx, a.keys)
	}
	return r
}

// put is an object on its way to the store. Its key is unique to this incarnation and
// sequence, and its body never changes: whatever is found under the key is this put's.
type put struct {
	kind    Kind
	id      ObjectID
	body    []byte
	class   store.Class
	settle  bool  // the outcome of the last try is not known: look before putting again
	running bool  // an action of it is on its way
	done    bool  // it is in the store
	dueNS   int64 // not before
	tries   int
}

func (p *put) action(node string) *Action {
	a := &Action{Kind: ActPut, Key: p.id.Key(node, p.kind), Class: p.class, body: p.body, put: p}
	if p.settle {
		a.Kind = ActHead
	}
	p.running = true
	return a
}

// errPutLost says that a put without an answer was not carried out.
var errPutLost = errors.New("the put of an object was lost")

// errOtherBytes says that an object is not what was put under its key.
var errOtherBytes = errors.New("under the key of an object of this uploader lies another one")

// result takes the outcome of an action; err: it is to be tried again after a wait.
func (p *put) result(a *Action, r *Result) error {
	p.running = false
	if a.Kind == ActHead {
		switch {
		case r.err == nil && r.bytes != int64(len(p.body)):
			return errOtherBytes
		case r.err == nil:
			p.done, p.body = true, nil
			return nil
		case errors.Is(r.err, store.ErrNotFound):
			p.settle = false // a put still on its way and the next one put the same bytes
			return errPutLost
		}
		return r.err
	}
	switch {
	case r.err == nil:
		p.done, p.body = true, nil
		return nil
	case errors.Is(r.err, store.ErrExists), errors.Is(r.err, store.ErrUnknownOutcome):
		p.settle = true
		return nil
	}
	return r.err
}
