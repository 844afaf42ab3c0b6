/* The rules of the log on one device over several starts (ringwal): frames in flight that land, tear or are
   lost in any order, superblock copies likewise, frames that were seen and are gone after the flush, frames
   that land late under the next owner, damage to acked frames at rest.

   One slot of the ring is one frame, the longest frame is one slot, no pads. The sum of a frame is its
   (position, start that wrote it); the epoch is the number of the start. Two sets of two superblock slots.

   CAP slots, W frames of window, MAXP positions, NS starts (the first is number 1), DAMAGE frames damaged
   at rest, ROT superblock copies, LATE crashes whose frames in flight may land later (the next start then jumps W), VOLATILE (what
   is read before the flush may be gone after it). DROP_…: a rule is dropped; see README.md. */
#ifndef CAP
#define CAP 4
#endif
#ifndef W
#define W 2
#endif
#ifndef MAXP
#define MAXP 7
#endif
#ifndef NS
#define NS 3
#endif
#ifndef DAMAGE
#define DAMAGE 0
#endif
#ifndef ROT
#define ROT 0
#endif
#ifndef LATE
#define LATE 0
#endif
#define NE (NS+1)
#define NO 31
#ifdef DROP_WINDOW
#define WINDOW (CAP-1)
#else
#define WINDOW W
#endif
#ifdef DROP_JUMP
#define JUMP 0
#else
#define JUMP W
#endif

/* phases */
#define START 0     /* flush */
#define RECOVER 1
#define ROUND1 2    /* the boundary is being written */
#define FIRST 3     /* the first checkpoint */
#define ROUND2 4    /* the superblock that records it */
#define SERVE 5
#define CLOSE 6     /* the clean superblock is being written */
#define STOPPED 7

typedef Frame { byte pos; byte ep; byte du; bit ck; bit vol };
typedef Copy { bit ok; byte ep; byte seq; byte trim; byte tep; byte du; byte mask };
Frame dev[CAP];
Copy S[4]; Copy N;                                /* N: the update that is being written */
byte bf[NE], bs[NE], pep[NE];                     /* boundary of each start: follow end, start, epoch of the frame there */
byte ph = START, ep, head, dur, trim, tep, start, ckpt = NO;
byte mask, seq, recorded;
bit jump, set, first, k;
byte sub[MAXP];                                   /* epoch of the frame at each position of the log */
byte fdu[CAP]; bit fck[CAP], landed[CAP];         /* in flight */
byte lpos[2], lep[2], ldu[2]; bit lck[2]; byte late = LATE;   /* frames that may land late */
byte rot = ROT, dmg = DAMAGE, low = NO;                      /* lowest damaged acked position */
byte G[MAXP], ghead, acked, starts;               /* what must be true: the log of the newest owner, its end, what was acked */
/* scratch */
byte p, q, e, best, last, inf, bad, proof, x, found;

#define PENDING (lpos[0] != NO || lpos[1] != NO)
#ifdef DROP_HOLD
#define MAYREUSE (true)
#else
#define MAYREUSE (!jump || !PENDING)              /* T has passed */
#endif
#ifdef DROP_DOOR
#define INFORCE2 (true)
#else
#define INFORCE2 (false)
#endif
#ifdef DROP_CHECKPOINT
#define TRIMTO dur
#else
#define TRIMTO ckpt
#endif
#ifdef DROP_EARLY
#define MAYWRITE (ph == FIRST || ph == SERVE || ph == ROUND1)
#else
#define MAYWRITE (ph == FIRST || ph == SERVE)
#endif

inline clear() { p = 0; do :: p < MAXP -> sub[p] = 0; p++ :: else -> break od; p = 0; q = 0; e = 0; best = 0; last = 0; inf = 0; bad = 0; proof = 0; x = 0; found = 0 }
inline clear1() { e = found; clear(); found = e; e = 0 }
inline newest() { best = NO; q = 0;
  do
  :: q < 4 -> if :: S[q].ok && (best == NO || S[q].ep > S[best].ep || S[q].ep == S[best].ep && S[q].seq > S[best].seq) -> best = q :: else fi; q++
  :: else -> break
  od; q = 0 }

inline walk() {
  newest();
  p = S[best].trim; e = p; last = S[best].tep; found = 0; ckpt = NO; bad = 0;
  if :: !S[0].ok && !S[1].ok || !S[2].ok && !S[3].ok -> bad = 1 :: else fi;       /* a set without a copy */
  inf = 0; q = 1;
  do :: q < NE -> if :: (S[best].mask & (1<<q)) && bs[q] <= p -> inf = q :: else fi; q++ :: else -> break od;
  q = 0; do :: q < MAXP -> if :: q >= p -> sub[q] = 0 :: else fi; q++ :: else -> break od;
  do
  :: p < MAXP ->
     x = 0; q = 1;
     do :: q < NE -> if :: (S[best].mask & (1<<q)) && bf[q] == e -> x = q :: else fi; q++ :: else -> break od;
     if :: x > inf && bs[x] >= p -> if :: pep[x] != last -> bad = 1 :: else fi; p = bs[x]; inf = x :: else fi;
     if
#ifdef DROP_VOID
     :: p < MAXP && dev[p%CAP].pos == p ->
#else
     :: p < MAXP && dev[p%CAP].pos == p && dev[p%CAP].ep == inf ->
#endif
        last = dev[p%CAP].ep; sub[p] = last; if :: dev[p%CAP].ck -> found = 1; ckpt = p :: else fi; p++; e = p
     :: else -> break
     fi
  :: else -> break
  od;
#ifndef DROP_FOLLOWED
  q = 1; do :: q < NE -> if :: (S[best].mask & (1<<q)) && bf[q] > e -> bad = 1 :: else fi; q++ :: else -> break od;
#endif
#ifndef DROP_RECORDED
  if :: S[best].du > p -> bad = 1 :: else fi;
#endif
#ifndef DROP_SCAN
  q = p;
  do
  :: q <= p + W + 1 && q < MAXP ->
     if :: dev[q%CAP].pos == q && dev[q%CAP].ep == inf && dev[q%CAP].du > p -> bad = 1
        :: dev[q%CAP].pos == q && dev[q%CAP].ep > S[best].ep && bs[dev[q%CAP].ep] == q && bf[dev[q%CAP].ep] == e && pep[dev[q%CAP].ep] == last -> bad = 1
        :: else fi; q++
  :: else -> break
  od;
#endif
  if :: !found && S[best].du > 0 -> bad = 1 :: else fi; q = 0 }

inline judge() {
  if
  :: low == NO || low < S[best].trim ->
     if :: bad -> printf("EV   it is called damage, and nothing was\n") :: else fi;
     assert(!bad);                                                                  /* never a false alarm */
     assert(e >= acked);                                                            /* P2 */
     assert(e <= ghead);
     q = S[best].trim;
     do :: q < e -> assert(sub[q] == G[q]); q++ :: else -> break od;                   /* P3: no ghosts; P4 */
     assert(acked == 0 || found)                                                    /* never an empty log */
  :: else -> /* P7: what proves that the damaged place was durable */
     proof = 0; q = 0;
     do :: q < CAP -> if :: dev[q].pos != NO && dev[q].du > low && dev[q].ep == G[dev[q].pos] -> proof = 1 :: else fi; q++ :: else -> break od;
     if :: S[best].du > low -> proof = 1 :: else fi;
     q = 1; do :: q < NE -> if :: (S[best].mask & (1<<q)) && bf[q] > low -> proof = 1 :: else fi; q++ :: else -> break od;
     if :: acked > 0 && !found -> proof = 1 :: else fi;
     if :: proof && !bad -> printf("EV   damage that is proven is taken for a torn tail\n") :: else fi;
     assert(!proof || bad)
  fi; q = 0 }

inline setcopy(c) { d_step { S[c].ok = 1; S[c].ep = N.ep; S[c].seq = N.seq; S[c].trim = N.trim; S[c].tep = N.tep; S[c].du = N.du; S[c].mask = N.mask;
  if :: ph == ROUND1 -> /* from now on this is the log */
        q = 0; do :: q < MAXP -> if :: q >= bf[ep] && G[q] != ep -> G[q] = 0 :: else fi; q++ :: else -> break od; q = 0; ghead = head
     :: else fi } }
inline tearcopy(c) { d_step { S[c].ok = 0; S[c].ep = 0; S[c].seq = 0; S[c].trim = 0; S[c].tep = 0; S[c].du = 0; S[c].mask = 0 } }
inline prepare() { d_step { /* the next update of the superblock */
  seq++; N.ep = ep; N.seq = seq; N.trim = trim; N.tep = tep; N.du = recorded; N.mask = mask } }
inline land(z) { d_step { dev[z%CAP].pos = z; dev[z%CAP].ep = ep; dev[z%CAP].du = fdu[z%CAP]; dev[z%CAP].ck = fck[z%CAP]; dev[z%CAP].vol = 0; landed[z%CAP] = 1 } }
inline wipe(z) { d_step { dev[z].pos = NO; dev[z].ep = 0; dev[z].du = 0; dev[z].ck = 0; dev[z].vol = 0 } }
inline forget() { d_step { q = 0; do :: q < CAP -> fdu[q] = 0; fck[q] = 0; landed[q] = 0; q++ :: else -> break od; q = 0;
  N.ep = 0; N.seq = 0; N.trim = 0; N.tep = 0; N.du = 0; N.mask = 0; first = 0; k = 0 } }
#define SLOT (2*set + (first + k) % 2)

active proctype Log() {
  d_step { q = 0; do :: q < CAP -> dev[q].pos = NO; q++ :: else -> break od;
    q = 0; do :: q < 4 -> S[q].ok = 1; S[q].seq = 1; q++ :: else -> break od;
    q = 0; do :: q < 2 -> lpos[q] = NO; q++ :: else -> break od;
    q = 0; do :: q < NE -> bf[q] = NO; bs[q] = NO; q++ :: else -> break od; q = 0 };
  do
  /* ---- a start: flush, then read ---- */
  :: ph == START -> atomic { 
#ifndef DROP_FLUSH
       q = 0; do :: q < CAP -> if :: dev[q].vol -> if :: dev[q].vol = 0 :: wipe(q) fi :: else fi; q++ :: else -> break od; q = 0;
#endif
       ph = RECOVER }
  :: ph == RECOVER && starts == NS -> d_step { walk(); judge(); clear() };
#ifdef REACH
     assert(acked < 4);                               /* that the model gets somewhere */
#endif
     ph = STOPPED
  :: ph == RECOVER && starts < NS -> atomic {
       d_step { walk();
       printf("EV start %d recovers up to %d from the superblock of epoch %d seq %d, jumps %d\n", starts + 1, e, S[best].ep, S[best].seq, jump);
       judge() };
#ifdef DROP_FLUSH
       p = e;
       q = 0; do :: q < CAP -> if :: dev[q].vol -> if :: dev[q].vol = 0 :: wipe(q) fi :: else fi; q++ :: else -> break od; q = 0;
#endif
       if
       :: bad || low != NO -> clear(); ph = STOPPED
       :: else ->
          d_step {
          starts++; ep = starts; bf[ep] = e; pep[ep] = last; start = p + (jump -> JUMP : 0); bs[ep] = start;
          head = start; dur = start; trim = S[best].trim; tep = S[best].tep;
          mask = 1 << ep; q = 1;
          do :: q < ep -> if :: (S[best].mask & (1<<q)) && bf[q] < e -> mask = mask | (1<<q) :: else fi; q++ :: else -> break od;
          recorded = (found -> e : S[best].du);
          set = (best < 2 -> 1 : 0);
          seq = 0; q = 0; do :: q < 4 -> if :: S[q].ok && S[q].seq > seq -> seq = S[q].seq :: else fi; q++ :: else -> break od;
#ifdef DROP_LOWFIRST
          first = 0;
#else
          first = (S[2*set+1].seq < S[2*set].seq -> 1 : 0);
#endif
          k = 0; prepare();
          x = (found && ckpt == e - 1 -> 1 : 0)                /* the newest checkpoint is the last frame */
          };
          if :: start >= MAXP || start - trim >= CAP -> clear(); ph = STOPPED :: else -> d_step { found = x; clear1() }; ph = ROUND1 fi
       fi }
  /* ---- a superblock update: one copy, then the other ---- */
  :: (ph == ROUND1 || ph == ROUND2 || ph == CLOSE || ph == SERVE) && N.ep != 0 && !k -> atomic { printf("EV copy %d of epoch %d seq %d trim %d lands\n", SLOT, ep, N.seq, N.trim); setcopy(SLOT);
#ifdef DROP_BOTH
       trim = N.trim; tep = N.tep;
#endif
       k = 1 }
  :: (ph == ROUND1 || ph == ROUND2 || ph == CLOSE || ph == SERVE) && N.ep != 0 && k -> atomic { printf("EV copy %d of epoch %d seq %d trim %d lands\n", SLOT, ep, N.seq, N.trim); setcopy(SLOT); trim = N.trim; tep = N.tep; d_step { q = 0; do :: q < trim -> G[q] = 0; q++ :: else -> break od; q = 0 };
       d_step { N.ep = 0; N.seq = 0; N.trim = 0; N.tep = 0; N.du = 0; N.mask = 0; first = 0; k = 0 };
       if
       :: ph == ROUND1 && !found -> ph = FIRST
       :: ph == ROUND1 && found -> found = 0; d_step { prepare() }; ph = ROUND2
       :: ph == ROUND2 -> ph = SERVE; acked = (dur > start -> dur : bf[ep]); printf("EV doors open\n")
       :: ph == CLOSE -> ph = START
       :: else
       fi }
  /* ---- frames ---- */
  :: MAYWRITE && head < MAXP && head - dur < WINDOW && head - trim < CAP && (ph == SERVE || head == start) -> atomic {
       printf("EV frame %d of epoch %d is submitted, durable %d\n", head, ep, dur);
       fdu[head%CAP] = dur; landed[head%CAP] = 0; G[head] = ep;
       if :: ph == SERVE -> if :: fck[head%CAP] = 0 :: fck[head%CAP] = 1 fi :: else -> fck[head%CAP] = 1 fi;
       head++; if :: ph != ROUND1 -> ghead = head :: else fi }
#ifdef DROP_EARLY
  :: ph == ROUND1 && dur < head && !landed[dur%CAP] -> atomic { x = dur; land(x); x = 0 }
#endif
  :: ph != START && ph != RECOVER && ph != STOPPED && dur + 1 < head && !landed[(dur+1)%CAP] -> atomic { x = dur + 1; land(x); x = 0 }
#ifdef DROP_WINDOW
  :: ph != START && ph != RECOVER && ph != STOPPED && dur + 2 < head && !landed[(dur+2)%CAP] -> atomic { x = dur + 2; land(x); x = 0 }
#endif
  /* the oldest lands, and is complete: a crash between the two is a crash at which it lands */
  :: (ph == FIRST || ph == SERVE) && dur < head -> atomic { if :: !landed[dur%CAP] -> x = dur; land(x); x = 0 :: else fi;
       if :: fck[dur%CAP] -> ckpt = dur :: else fi;
       landed[dur%CAP] = 0; fdu[dur%CAP] = 0; fck[dur%CAP] = 0; dur++;
       if :: ph == SERVE -> acked = dur; printf("EV acked up to %d\n", dur)
          :: ph == FIRST -> 
#ifdef DROP_DOOR
             ph = SERVE; acked = dur; printf("EV doors open\n")
#else
             recorded = dur; d_step { prepare() }; ph = ROUND2
#endif
       fi }
  /* ---- trim, close ---- */
  :: ph == SERVE && N.ep == 0 && ckpt != NO && ckpt >= start && trim < TRIMTO && MAYREUSE -> atomic { d_step {
       recorded = dur; prepare(); N.trim = TRIMTO; N.tep = (N.trim > start -> ep : (N.trim == start -> pep[ep] : 0));
       /* boundaries below trim go, but for the newest of them */
       x = 0; q = 1; do :: q < NE -> if :: (mask & (1<<q)) && bf[q] < N.trim -> x = q :: else fi; q++ :: else -> break od;
#ifdef DROP_NEWEST
       x++;
#endif
       q = 1; do :: q < x -> if :: mask & (1<<q) -> mask = mask - (1<<q) :: else fi; q++ :: else -> break od;
       N.mask = mask; q = 0; x = 0 } }
#ifdef CLOSES
  :: ph == SERVE && N.ep == 0 && head == dur && recorded < dur -> atomic { recorded = dur; d_step { prepare() }; ph = CLOSE }
#endif
  /* ---- a crash ---- */
  :: ph != START && ph != RECOVER && ph != STOPPED -> atomic {
       printf("EV crash\n"); jump = (jump && PENDING -> 1 : 0);
       x = dur; p = 0;
       do
       :: x < head ->
          if
          :: landed[x%CAP] -> 
#ifdef VOLATILE
             if :: dev[x%CAP].vol = 1 :: skip fi
#else
             skip
#endif
          :: !landed[x%CAP] ->
             if
             :: land(x); printf("EV   frame %d lands\n", x);
#ifdef VOLATILE
                if :: dev[x%CAP].vol = 1; printf("EV   but it is only in a cache\n") :: skip fi
#endif
             :: x%CAP < CAP -> q = x%CAP; wipe(q); q = 0; printf("EV   frame %d is torn\n", x)
             :: skip
             :: late > 0 && p < 2 && lpos[p] == NO -> lpos[p] = x; lep[p] = ep; ldu[p] = fdu[x%CAP]; lck[p] = fck[x%CAP]; p++; jump = 1; printf("EV   frame %d is still on its way\n", x)
             fi
          fi; x++
       :: else -> break
       od;
       if :: jump && late > 0 -> late-- :: else fi; x = 0; p = 0;
       if :: N.ep != 0 -> if :: setcopy(SLOT); printf("EV   copy %d of epoch %d seq %d trim %d lands\n", SLOT, ep, N.seq, N.trim) :: tearcopy(SLOT); printf("EV   copy %d is torn\n", SLOT) :: skip fi :: else fi;
       found = 0; ckpt = NO; forget(); ph = START }
  :: lpos[0] != NO -> atomic { if :: d_step { q = lpos[0] % CAP; dev[q].pos = lpos[0]; dev[q].ep = lep[0]; dev[q].du = ldu[0]; dev[q].ck = lck[0]; dev[q].vol = 0; q = 0 }; printf("EV   frame %d of epoch %d lands late\n", lpos[0], lep[0]) :: skip fi; lpos[0] = NO; lep[0] = 0; ldu[0] = 0; lck[0] = 0 }
  :: lpos[1] != NO -> atomic { if :: d_step { q = lpos[1] % CAP; dev[q].pos = lpos[1]; dev[q].ep = lep[1]; dev[q].du = ldu[1]; dev[q].ck = lck[1]; dev[q].vol = 0; q = 0 }; printf("EV   frame %d of epoch %d lands late\n", lpos[1], lep[1]) :: skip fi; lpos[1] = NO; lep[1] = 0; ldu[1] = 0; lck[1] = 0 }
  /* ---- a superblock copy rots; its neighbour is there ---- */
  :: ph == START && rot > 0 -> atomic { q = 0; do :: q < 3 -> q++ :: break od;
       if :: S[q].ok && S[(q < 2 -> 1 - q : 5 - q)].ok -> tearcopy(q); printf("EV copy %d rots\n", q) :: else fi; q = 0; rot-- }
  /* ---- damage to acked frames at rest ---- */
  :: ph == START && dmg > 0 && acked > 0 -> atomic { newest();
       if :: low == NO -> x = S[best].trim; do :: x + 1 < acked -> x++ :: break od :: else -> x = low + DAMAGE - dmg fi;
       if :: x < acked && dev[x%CAP].pos == x && dev[x%CAP].ep == G[x] && !dev[x%CAP].vol -> printf("EV frame %d rots\n", x); if :: low == NO -> low = x :: else fi; q = x % CAP; wipe(q); dmg-- :: else -> dmg = 0 fi;
       x = 0; best = 0; q = 0 }
  :: ph == STOPPED -> break
  od
}
