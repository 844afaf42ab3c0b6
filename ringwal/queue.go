package ringwal

// frameQueue is a first-in, first-out queue that keeps its memory.
type frameQueue struct {
	ring  []*Frame // length a power of two
	head  int
	count int
}

func (q *frameQueue) push(f *Frame) {
	if q.count == len(q.ring) {
		grown := make([]*Frame, max(16, 2*len(q.ring)))
		for i := range q.count {
			grown[i] = q.at(i)
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.count)&(len(q.ring)-1)] = f
	q.count++
}

// pop removes the first frame, which must exist.
func (q *frameQueue) pop() *Frame {
	f := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.count--
	return f
}

func (q *frameQueue) first() *Frame { return q.ring[q.head] }

func (q *frameQueue) at(i int) *Frame { return q.ring[(q.head+i)&(len(q.ring)-1)] }
