/* The routine of start and takeover (fence/plan.go, node/open.go, upload/claim.go), with everything that
   a crash, a reboot of a host, a target reset and a late write can do to it.

   Incarnation 0 owns the log and serves it from host 0. The others start one after the other, each on
   either host: over a process that was killed there (same kernel boot) or over a host that was rebooted.
   One frame is one slot, W is one frame, one frame and one superblock copy in flight. The sum of a frame
   is its (position, incarnation): an incarnation writes a position once.

   Time: a write that is in flight when somebody's wait for L ends becomes *late*: its owner, whose clock
   started at the submission, does not count it. It may land at any time, until T. A pause is not being
   scheduled.

   NI incarnations (on the hosts that the bits of HOSTS say, else on any), MAXP positions, CAP slots of the ring (below MAXP: laps, with trim), REBOOTS, RESETS,
   PLAIN (preempt does not abort), LATESB (late superblock writes), TEAR (a superblock copy in flight at a
   crash may be torn), COMMITS, ATTACH (no reservations: one host at a time has the device).
   DROP_…: a rule is dropped; see README.md. */
#ifndef NI
#define NI 3
#endif
#ifndef MAXP
#define MAXP 5
#endif
#ifndef CAP
#define CAP MAXP
#endif
#ifndef REBOOTS
#define REBOOTS 1
#endif
#ifndef RESETS
#define RESETS 0
#endif
#ifndef COMMITS
#define COMMITS 1
#endif
#ifndef BEATS
#define BEATS 0
#endif
#ifndef RESTARTS
#define RESTARTS NI     /* starts on a host where one ran before */
#endif
#define NO 15
#ifdef DROP_JUMP
#define JW 0
#else
#define JW 1
#endif
#ifdef LAPS
#define TRIM
#endif

/* phases */
#define OFF 0
#define OPEN 1
#define FENCE 2
#define ABORT 3
#define SETTLE 4
#define WAIT 5
#define READ 6
#define SB 7
#define SB1 8
#define SB2 9
#define SB3 10
#define CLAIM 11
#define CLAIM1 12
#define CKPT 13
#define CKPT1 14
#define SERVE 15
#define DEAD 16

typedef Inc {
  byte ph; bit host; byte boot; byte ep;
  byte rep; byte pre; bit abt; byte own; bit jump; bit uns;   /* of the fence: replaced, preempted, aborted, whom it is about, unsettled */
  byte E; byte bs; byte pinc; byte mask;               /* boundary: follow end, start, incarnation of the frame there; boundaries kept */
  byte trim; byte tinc; byte du; byte head; byte dur;
  byte fs; byte fpos; byte ss; bit slot; bit first; bit set; byte seq; byte nx; bit late;   /* fs, ss: 0 idle 1 in flight 2 done 3 failed */
  byte ntrim; byte ntinc;
  byte pv; byte pexp; byte pup; byte ver;               /* manifest put: 0 none 1 in flight 2 ok 3 changed or unknown */
  byte sub[MAXP]                                        /* what it recovered */
};
typedef Slot { bit ok; byte inc; byte seq; byte mask; byte trim; byte tinc; byte du };
Inc I[NI];
Slot S[4];
byte dpos[CAP]; byte dinc[CAP];
byte holder = 0;
byte boot[2];
byte mver = 1, minc = 0, mup = 0;
byte started = 1, reboots = REBOOTS, resets = RESETS, commits = COMMITS, restarts = RESTARTS, beats = BEATS;
/* what must be true */
byte ack[MAXP], cur[MAXP];
byte g = 0, gE = 0, gtrim = 0, ret = 0;
/* scratch */
byte p, q, e, best, last, inf, dam, mx, x;
Slot Z;   /* the superblock that a recovery goes by */

#define HOLDS(i)  (holder != NO && I[holder].host == I[i].host)
#define MAY(i)    (holder == NO || HOLDS(i))
#define ALIVE(i)  (I[i].ph != OFF && I[i].ph != DEAD)
#define BUSY(j)   (I[j].fs == 1 || I[j].ss == 1)
#define KERNEL(i,j) (j != i && I[j].host == I[i].host && I[j].boot == I[i].boot && BUSY(j))
#define OF(h,j)   (I[j].host == h && BUSY(j))
#if NI > 4
#define QUIETKERNEL(i) (!KERNEL(i,0) && !KERNEL(i,1) && !KERNEL(i,2) && !KERNEL(i,3) && !KERNEL(i,4))
#define QUIETHOST(h) (!OF(h,0) && !OF(h,1) && !OF(h,2) && !OF(h,3) && !OF(h,4))
#define OTHERS(i) ((i != 0 && BUSY(0)) || (i != 1 && BUSY(1)) || (i != 2 && BUSY(2)) || (i != 3 && BUSY(3)) || (i != 4 && BUSY(4)))
#define NOCOPY(i) ((i == 0 || I[0].ss != 1) && (i == 1 || I[1].ss != 1) && (i == 2 || I[2].ss != 1) && (i == 3 || I[3].ss != 1) && (i == 4 || I[4].ss != 1))
#elif NI > 3
#define QUIETKERNEL(i) (!KERNEL(i,0) && !KERNEL(i,1) && !KERNEL(i,2) && !KERNEL(i,3))
#define QUIETHOST(h) (!OF(h,0) && !OF(h,1) && !OF(h,2) && !OF(h,3))
#define OTHERS(i) ((i != 0 && BUSY(0)) || (i != 1 && BUSY(1)) || (i != 2 && BUSY(2)) || (i != 3 && BUSY(3)))
#define NOCOPY(i) ((i == 0 || I[0].ss != 1) && (i == 1 || I[1].ss != 1) && (i == 2 || I[2].ss != 1) && (i == 3 || I[3].ss != 1))
#else
#define QUIETKERNEL(i) (!KERNEL(i,0) && !KERNEL(i,1) && !KERNEL(i,2))
#define QUIETHOST(h) (!OF(h,0) && !OF(h,1) && !OF(h,2))
#define OTHERS(i) ((i != 0 && BUSY(0)) || (i != 1 && BUSY(1)) || (i != 2 && BUSY(2)))
#define NOCOPY(i) ((i == 0 || I[0].ss != 1) && (i == 1 || I[1].ss != 1) && (i == 2 || I[2].ss != 1))
#endif
#define EP(s) (S[s].inc == NO -> 0 : I[S[s].inc].ep)

#ifdef DROP_VICTIM
#define ABORTED(i) (I[i].abt)
#else
#define ABORTED(i) (I[i].abt && I[i].pre == I[i].own)
#endif
#ifdef DROP_RESTARTKEY
#define REPLACED(i) (I[i].rep != NO)
#else
#define REPLACED(i) (I[i].rep == I[i].own)
#endif
#ifdef DROP_BOOT
#define SAMEBOOT(i) (true)
#else
#define SAMEBOOT(i) (I[I[i].own].host == I[i].host && I[I[i].own].boot == I[i].boot)
#endif
#ifdef DROP_EXCLUSIVE
#define OPENS(i) (true)
#else
#define OPENS(i) (QUIETKERNEL(i))   /* a kernel's exclusive open waits for its own writes */
#endif
#ifdef DROP_ABORT
#define ABORTS(i) (true)
#else
#define ABORTS(i) (QUIETHOST(I[I[i].pre].host))
#endif
#if defined(DROP_HOLD) || !defined(PLAIN) && !defined(HOLD_ALWAYS)
#define MAYREUSE(i) (true)
#else
/* a boundary above trim that jumped, this start's or an earlier one's: only when T has passed */
#define JUMPED(i,j) ((I[i].mask & (1<<j)) && I[j].bs > I[j].E && I[j].bs > I[i].trim)
#define MAYREUSE(i) (!OTHERS(i) || !JUMPED(i,0) && !JUMPED(i,1) && !JUMPED(i,2))
#endif
/* Behind a start that died, or where nobody held, a start waits T instead of L; and where the log still
   holds a window that was jumped over: T may not have passed since. Without reservations it is relied on
   that copies that are on their way when a kernel ends land within L, or never (ENDS, with the one at FENCE). */
#ifdef DROP_T
#define KNOWN(i) (true)
#else
#define KNOWN(i) (I[i].own != NO && (I[i].rep == I[i].own || I[i].pre == I[i].own))
#endif
#ifdef DROP_UNSETTLED
#define SETTLED(i) (true)
#else
#define SETTLED(i) (!I[i].uns)
#endif
#ifdef DROP_ENDS
#define ENDS(i) (true)
#else
#define ENDS(i) (NOCOPY(i))
#endif
#ifdef ATTACH
#define WAITED(i) (ENDS(i))
#else
#define WAITED(i) (!OTHERS(i) || KNOWN(i) && SETTLED(i))
#endif
/* An epoch writes the set that the newest copy is not in, but within T of a jump, where nothing of the newest
   owner is on its way, that very set: a copy of the owner before it may still land on the other. */
#ifdef DROP_SAMESET
#define SAMESET(i) (false)
#else
#define SAMESET(i) (!I[i].jump && I[i].uns)
#endif
/* CHECK_OWNER: a manifest whose owner has the epoch of the newest superblock or a higher one, and is another, refuses the start */
#ifdef CHECK_OWNER
#define OWNERLOST(i) (S[best].inc != NO && minc != S[best].inc && I[minc].ep >= EP(best))
#else
#define OWNERLOST(i) (false)
#endif
#ifdef DROP_COND
#define UNCHANGED(i) (true)
#else
#define UNCHANGED(i) (mver == I[i].pexp)
#endif
#ifdef SCAN_EQUAL
#define LATER(x) (I[x].ep >= (Z.inc == NO -> 0 : I[Z.inc].ep))
#else
#define LATER(x) (I[x].ep > (Z.inc == NO -> 0 : I[Z.inc].ep))
#endif

inline newest() { best = NO; q = 0;
  do
  :: q < 4 ->
     if
     :: S[q].ok && (best == NO || EP(q) > EP(best) || EP(q) == EP(best) && S[q].seq > S[best].seq) -> best = q
     :: else
     fi; q++
  :: else -> break
  od; q = 0 }

inline unsettled(i) { I[i].uns = 0; q = 0;
  do
  :: q < NI -> if :: (S[best].mask & (1<<q)) && I[q].bs > I[q].E && I[q].bs > S[best].trim -> I[i].uns = 1 :: else fi; q++
  :: else -> break
  od; q = 0 }

inline die(i) { d_step { /* what it had submitted goes on by itself */
  I[i].ph = DEAD; I[i].uns = 0; I[i].rep = 0; I[i].pre = 0; I[i].abt = 0; I[i].own = 0; I[i].jump = 0; I[i].head = 0; I[i].dur = 0; I[i].nx = 0; I[i].first = 0;
  I[i].ver = 0;
  if :: I[i].pv != 1 -> I[i].pv = 0; I[i].pexp = 0; I[i].pup = 0 :: else fi;
  if :: I[i].fs != 1 -> I[i].fs = 0; I[i].fpos = 0 :: else fi;
  if :: I[i].ss != 1 -> I[i].ss = 0; I[i].slot = 0; I[i].set = 0; I[i].seq = 0; I[i].ntrim = 0; I[i].ntinc = 0; I[i].trim = 0; I[i].tinc = 0; I[i].du = 0; I[i].mask = 0 :: else fi;
  if :: !BUSY(i) -> I[i].late = 0 :: else fi;
  q = 0; do :: q < MAXP -> I[i].sub[q] = 0; q++ :: else -> break od; q = 0 } }

/* recovery from slot best, into I[i] */
inline recover(i) {
  p = Z.trim; e = p; last = Z.tinc; dam = 0;
  q = 0; do :: q < MAXP -> I[i].sub[q] = NO; q++ :: else -> break od;
  /* in force at trim: the newest boundary that starts at or below it */
  inf = NO; q = 0;
  do
  :: q < NI -> if :: (Z.mask & (1<<q)) && I[q].bs <= p && (inf == NO || I[q].bs > I[inf].bs || I[q].ep > I[inf].ep) -> inf = q :: else fi; q++
  :: else -> break
  od;
  do
  :: p < MAXP ->
     /* cross into the epoch that follows here */
     x = NO; q = 0;
     do
     :: q < NI -> if :: (Z.mask & (1<<q)) && I[q].E == e && (x == NO || I[q].ep > I[x].ep) -> x = q :: else fi; q++
     :: else -> break
     od;
     if :: x != NO && x != inf && !(I[x].bs < p) ->
           if :: I[x].pinc != last && e > 0 -> dam = 1 :: else fi; p = I[x].bs; inf = x
        :: else fi;
     if
#ifdef DROP_VOID
     :: p < MAXP && dpos[p%CAP] == p && dinc[p%CAP] != NO -> last = dinc[p%CAP]; I[i].sub[p] = last; p++; e = p
#else
     :: p < MAXP && dpos[p%CAP] == p && dinc[p%CAP] == inf -> last = inf; I[i].sub[p] = inf; p++; e = p
#endif
     :: else -> break
     fi
  :: else -> break
  od;
  /* what the first frame that is missing means */
  q = 0; do :: q < NI -> if :: (Z.mask & (1<<q)) && I[q].E > e -> dam = 1 :: else fi; q++ :: else -> break od;
  if :: Z.du > p -> dam = 1 :: else fi;
  q = p;
  do
  :: q <= p + 2 && q < MAXP ->
     if :: dpos[q%CAP] == q && dinc[q%CAP] == inf && q > p -> dam = 1          /* issued when the hole was durable */
        :: dpos[q%CAP] == q && dinc[q%CAP] != inf && dinc[q%CAP] != NO && I[dinc[q%CAP]].bs == q && I[dinc[q%CAP]].E == e && I[dinc[q%CAP]].pinc == last && LATER(dinc[q%CAP]) -> dam = 1                                                          /* the log went on in a later epoch */
        :: else fi; q++
  :: else -> break
  od;
  I[i].E = e; I[i].pinc = last; q = 0 }

inline oracle(i) { /* the recovered log against what was acked and what was in force */
  if
  :: dam ->
#ifndef LOUD
     printf("EV inc %d REFUSES: damage\n", i);
     assert(false)                                        /* nothing rotted */
#else
     skip
#endif
  :: else ->
     assert(g != ret || I[i].E >= gE);                    /* what a takeover that returned had recovered stays */
     q = Z.trim;
     do
     :: q < MAXP ->
        if :: ack[q] != NO -> assert(q < I[i].E && I[i].sub[q] == ack[q]) :: else fi;                     /* P2 */
        if :: q < I[i].E && q < gE && g == ret -> assert(I[i].sub[q] == cur[q])                                       /* P3, P4 */
           :: q < I[i].E && q >= gE && g == ret -> assert(I[i].sub[q] == g || I[i].sub[q] == NO) :: else fi;            /* P3: no ghosts */
        q++
     :: else -> break
     od;
     assert(mup <= I[i].E)                                /* the store holds nothing that the log does not */
  fi; q = 0 }

inline inforce(i) {
  q = I[i].trim;
  do :: q < MAXP -> if :: ack[q] != NO -> assert(q < I[i].E && I[i].sub[q] == ack[q]) :: else fi; q++ :: else -> break od;  /* P2, P6 */
  g = i; gE = I[i].E; gtrim = I[i].trim; q = 0;
  do :: q < MAXP -> if :: q < I[i].trim :: q >= I[i].trim && q < I[i].E -> cur[q] = I[i].sub[q] :: else -> cur[q] = NO fi; q++ :: else -> break od; q = 0 }

inline acks(i) { d_step {
  x = I[i].head - 1;
  printf("EV inc %d ACKS position %d\n", i, x);
  assert(g == i || (x < gE && cur[x] == i));              /* P6: nothing is acked outside the newer log */
  I[i].dur = I[i].head; ack[x] = i; x = 0 } }


inline clear() { p = 0; q = 0; e = 0; best = 0; last = 0; inf = 0; dam = 0; mx = 0; x = 0;
  Z.ok = 0; Z.inc = 0; Z.seq = 0; Z.mask = 0; Z.trim = 0; Z.tinc = 0; Z.du = 0 }
inline fenced(i) { printf("EV inc %d ends: fenced or refused\n", i); die(i) }
inline endframe(i) { if :: !ALIVE(i) -> I[i].fs = 0; I[i].fpos = 0; if :: I[i].ss != 1 -> I[i].late = 0 :: else fi :: else fi }
inline endcopy(i) { if :: !ALIVE(i) -> I[i].ss = 0; I[i].slot = 0; I[i].set = 0; I[i].seq = 0; I[i].ntrim = 0; I[i].ntinc = 0; I[i].trim = 0; I[i].tinc = 0; I[i].du = 0; I[i].mask = 0;
    if :: I[i].fs != 1 -> I[i].late = 0 :: else fi :: else fi }
inline decide(i) { /* fence.Plan, settle and ordinary */
  if
  :: ABORTED(i) -> x = 1
#ifdef ATTACH
  :: !ABORTED(i) && SAMEBOOT(i) -> x = 1
  :: !ABORTED(i) && !SAMEBOOT(i) -> x = 0
#endif
#ifndef ATTACH
  :: else ->
     if
     :: REPLACED(i) && I[i].pre == NO && SAMEBOOT(i) -> x = 1
#ifdef DROP_RESERVED
     :: I[i].rep == NO && I[i].pre == NO -> x = 1
#endif
     :: else -> x = 0
     fi
#endif
  fi }
inline copyout(i) { d_step { q = 2 * I[i].set + I[i].slot;
  S[q].ok = 1; S[q].inc = i; S[q].seq = I[i].seq; S[q].mask = I[i].mask; S[q].trim = I[i].ntrim; S[q].tinc = I[i].ntinc; S[q].du = I[i].du; q = 0 } }
inline submitcopy(i, next) {
  if :: MAY(i) -> I[i].ss = 1; I[i].ph = next; printf("EV inc %d submits superblock copy %d seq %d\n", i, 2 * I[i].set + I[i].slot, I[i].seq)
     :: else -> fenced(i) fi }
inline submitframe(i, next) {
  if :: MAY(i) -> I[i].fs = 1; I[i].fpos = I[i].head; I[i].head++; I[i].ph = next; printf("EV inc %d submits frame %d\n", i, I[i].fpos)
     :: else -> fenced(i) fi }
inline put(i, up) { I[i].pv = 1; I[i].pup = up; printf("EV inc %d puts the manifest\n", i) }
inline round(i, next) { I[i].seq++; I[i].slot = I[i].first; I[i].nx = next; I[i].ph = SB }

proctype P(byte i) {
end:
  do
  /* ---- the device and the store: what is in flight lands, or does not ---- */
  :: atomic { I[i].fs == 1 -> printf("EV   the frame %d of inc %d lands, late %d\n", I[i].fpos, i, I[i].late);
       d_step { x = I[i].fpos % CAP;
         assert(!(dpos[x] != NO && dpos[x] >= gtrim && ack[dpos[x]] == dinc[x] && dinc[x] != i));   /* P2: not on an acked frame */
         x = 0; dpos[I[i].fpos%CAP] = I[i].fpos; dinc[I[i].fpos%CAP] = i };
       if :: I[i].late -> I[i].fs = 3 :: else -> I[i].fs = 2 fi; endframe(i) }
  :: atomic { I[i].fs == 1 && (!ALIVE(i) || I[i].late || !MAY(i)) -> I[i].fs = 3; endframe(i) }
  :: atomic { I[i].ss == 1 -> printf("EV   the superblock copy %d of inc %d, seq %d, lands, late %d\n", 2 * I[i].set + I[i].slot, i, I[i].seq, I[i].late);
       copyout(i); if :: I[i].ph == SB3 && I[i].nx == CLAIM && (I[i].ep > I[g].ep || I[i].ep == I[g].ep && holder == i) -> printf("EV inc %d: its boundary is in force\n", i); d_step { inforce(i) } :: else fi;
       if :: I[i].late -> I[i].ss = 3 :: else -> I[i].ss = 2 fi; endcopy(i) }
  :: atomic { I[i].ss == 1 && (!ALIVE(i) || I[i].late || !MAY(i)) -> I[i].ss = 3; endcopy(i) }
#ifdef TEAR
  :: atomic { I[i].ss == 1 && !ALIVE(i) && !I[i].late && I[i].fpos == 0 -> printf("EV   the superblock copy %d of inc %d is torn\n", 2 * I[i].set + I[i].slot, i);
       d_step { q = 2 * I[i].set + I[i].slot; S[q].ok = 0; S[q].inc = NO; S[q].seq = 0; S[q].mask = 0; S[q].trim = 0; S[q].tinc = 0; S[q].du = 0; q = 0 }; I[i].ss = 3; endcopy(i) }
#endif
  :: atomic { I[i].pv == 1 ->
       if
       :: UNCHANGED(i) ->
          printf("EV   the manifest of inc %d lands\n", i);
          assert(i == ret || I[i].ep > I[ret].ep);         /* P6 */
          mver++; minc = i; mup = I[i].pup;
          if :: I[i].pv = 2 :: I[i].pv = 3 fi               /* the answer comes, or is lost */
       :: else -> I[i].pv = 3
       fi;
       if :: !ALIVE(i) -> I[i].pv = 0; I[i].pexp = 0; I[i].pup = 0 :: else fi }

  /* ---- start ---- */
  :: atomic { I[i].ph == OFF && started == i ->
       started++;
#ifdef HOSTS
       I[i].host = (HOSTS >> i) & 1;
#else
       if :: I[i].host = 0 :: I[i].host = 1 fi;
#endif
       d_step { x = 0; p = 0; do :: p < i -> if :: I[p].host == I[i].host && I[p].boot == boot[I[i].host] -> x = 1 :: else fi; p++ :: else -> break od; p = 0 };
       if
       :: x == 0 -> printf("EV inc %d starts on host %d\n", i, I[i].host)
       :: x == 1 && restarts > 0 -> restarts--; printf("EV inc %d starts on host %d, whose process was killed\n", i, I[i].host)
       :: x == 1 && reboots > 0 -> reboots--; boot[I[i].host] = boot[I[i].host] + 1; printf("EV inc %d starts on host %d, which was rebooted\n", i, I[i].host)
       fi;
       I[i].boot = boot[I[i].host]; I[i].ph = OPEN; I[i].rep = NO; I[i].pre = NO; I[i].own = NO;
       p = 0; do :: p < i -> if :: I[p].host == I[i].host && ALIVE(p) -> die(p) :: else fi; p++ :: else -> break od;
       p = 0; x = 0 }
  :: atomic { I[i].ph == OPEN && OPENS(i) -> I[i].ph = FENCE;
#ifdef DROP_REREAD
       d_step { newest(); I[i].own = S[best].inc; I[i].mask = S[best].mask; I[i].trim = S[best].trim; I[i].tinc = S[best].tinc; I[i].du = S[best].du;
         I[i].set = (best < 2 -> 1 : 0); clear() }
#endif
       }
  /* ---- the fence ---- */
#ifdef ATTACH
  :: atomic { I[i].ph == FENCE && (HOLDS(i) || ENDS(i)) ->
       if :: !HOLDS(i) -> printf("EV the device is attached to host %d\n", I[i].host) :: else fi;
       I[i].ph = SETTLE; holder = i }
#else
  :: atomic { I[i].ph == FENCE ->
       if
       :: holder == NO -> printf("EV inc %d reserves, nobody held\n", i); I[i].ph = SETTLE
       :: holder != NO && HOLDS(i) -> printf("EV inc %d replaces the key of inc %d\n", i, holder); I[i].rep = holder; I[i].ph = SETTLE
       :: holder != NO && !HOLDS(i) -> printf("EV inc %d preempts inc %d\n", i, holder); I[i].pre = holder;
#ifdef PLAIN
          I[i].ph = SETTLE
#else
          I[i].ph = ABORT
#endif
       fi; holder = i }
#endif
  :: atomic { I[i].ph == ABORT && ABORTS(i) -> printf("EV inc %d: the abort returned\n", i); I[i].abt = 1; I[i].ph = SETTLE }
  :: atomic { I[i].ph == ABORT -> printf("EV inc %d: the answer to its preempt is lost\n", i); I[i].ph = SETTLE }
  :: atomic { I[i].ph == SETTLE ->
       if
       :: holder != i -> fenced(i)
       :: else -> d_step {
#ifndef DROP_REREAD
            newest(); I[i].own = S[best].inc; unsettled(i); best = 0;
#endif
            decide(i); if :: x -> I[i].ph = READ :: else -> I[i].ph = WAIT fi; x = 0 }
       fi }
  :: atomic { I[i].ph == WAIT && WAITED(i) ->
       if
       :: holder != i -> fenced(i)
       :: else -> printf("EV inc %d has waited\n", i);
          d_step {
#ifndef DROP_L
            p = 0; do :: p < NI -> if :: p != i && BUSY(p) -> I[p].late = 1;
#ifndef LATESB
              if :: I[p].ss == 1 -> I[p].ss = 3; if :: I[p].ph == DEAD -> I[p].ss = 0; I[p].slot = 0; I[p].set = 0; I[p].seq = 0; I[p].ntrim = 0; I[p].ntinc = 0; I[p].trim = 0; I[p].tinc = 0; I[p].du = 0; I[p].mask = 0 :: else fi;
                    if :: I[p].fs != 1 -> I[p].late = 0 :: else fi :: else fi
#else
              skip
#endif
              :: else fi; p++ :: else -> break od; p = 0;
#endif
            I[i].jump = 1;
#ifndef DROP_REREAD
            newest(); I[i].own = S[best].inc; unsettled(i); best = 0;
#endif
            I[i].ph = READ }
       fi }
#ifndef ATTACH
  :: atomic { (I[i].ph == WAIT || I[i].ph == READ) && holder == i && I[i].rep != NO && I[i].rep == I[i].own ->
       printf("EV inc %d ends without having written, and hands the key of inc %d back\n", i, I[i].rep); holder = I[i].rep; die(i) }
#endif
  /* ---- read the superblocks again, recover, draw the epoch ---- */
  :: atomic { I[i].ph == READ ->
       newest();
       if
       :: OWNERLOST(i) -> printf("EV inc %d REFUSES: the manifest names another owner\n", i); clear(); die(i)
#ifndef DROP_SAMEOWNER
#ifndef DROP_REREAD
       :: !OWNERLOST(i) && S[best].inc != I[i].own -> clear(); fenced(i)
#endif
#endif
       :: else ->
          d_step {
#ifdef DROP_REREAD
          Z.inc = I[i].own; Z.mask = I[i].mask; Z.trim = I[i].trim; Z.tinc = I[i].tinc; Z.du = I[i].du; best = 2 * (1 - I[i].set);
#else
          Z.inc = S[best].inc; Z.mask = S[best].mask; Z.trim = S[best].trim; Z.tinc = S[best].tinc; Z.du = S[best].du;
#endif
          recover(i) };
          printf("EV inc %d recovers up to %d from the superblock of inc %d, jumps %d\n", i, I[i].E, Z.inc, I[i].jump);
          oracle(i);
          d_step {
            mx = 0; x = 0; q = 0; do :: q < 4 -> if :: S[q].ok && EP(q) > mx -> mx = EP(q) :: else fi; if :: S[q].ok && S[q].seq > x -> x = S[q].seq :: else fi; q++ :: else -> break od;
            if :: I[minc].ep > mx -> mx = I[minc].ep :: else fi;
            I[i].ep = mx + 1; I[i].seq = x;
#ifdef DROP_SETS
            I[i].set = (best < 2 -> 0 : 1);
#else
            I[i].set = (best < 2 -> 1 : 0);
            if :: SAMESET(i) -> I[i].set = 1 - I[i].set :: else fi;
#endif
            I[i].first = (S[2*I[i].set+1].seq < S[2*I[i].set].seq -> 1 : 0);
            I[i].trim = Z.trim; I[i].tinc = Z.tinc; I[i].ntrim = I[i].trim; I[i].ntinc = I[i].tinc; I[i].du = I[i].E;
            I[i].bs = p + (I[i].jump -> JW : 0); I[i].head = I[i].bs; I[i].dur = I[i].bs;
            I[i].mask = 1 << i; q = 0;
            do :: q < NI -> if :: (Z.mask & (1<<q)) && I[q].E < I[i].E -> I[i].mask = I[i].mask | (1<<q) :: else fi; q++ :: else -> break od;
            I[i].rep = 0; I[i].pre = 0; I[i].abt = 0; I[i].own = 0; I[i].uns = 0 };
          if :: dam || I[i].bs >= MAXP || I[i].bs - I[i].trim >= CAP -> clear(); die(i)      /* or the end of the model */
             :: else -> clear();
#ifdef DROP_BOUNDARY
                d_step { inforce(i) }; I[i].ph = CLAIM
#else
                round(i, CLAIM)
#endif
          fi
       fi }
  /* ---- a round of superblocks: both copies, one after the other ---- */
  :: atomic { I[i].ph == SB && I[i].ss == 0 -> submitcopy(i, SB1) }
  :: atomic { I[i].ph == SB1 && I[i].ss > 1 ->
       if :: I[i].ss == 3 -> I[i].ss = 0; fenced(i)
          :: else -> I[i].ss = 0; I[i].slot = 1 - I[i].slot; I[i].ph = SB2;
#ifdef DROP_BOTH
             if :: I[i].nx == CLAIM -> d_step { inforce(i) } :: else fi; I[i].ss = 2; I[i].ph = SB3
#endif
       fi }
  :: atomic { I[i].ph == SB2 && I[i].ss == 0 -> submitcopy(i, SB3) }
  :: atomic { I[i].ph == SB3 && I[i].ss > 1 ->
       if :: I[i].ss == 3 -> I[i].ss = 0; fenced(i)
          :: else -> I[i].ss = 0; I[i].slot = 0; I[i].first = 0; I[i].trim = I[i].ntrim; I[i].tinc = I[i].ntinc; if :: g == i -> gtrim = I[i].trim :: else fi;
#ifdef REACH
             assert(!(I[i].nx == SERVE && i == NI - 1));
#endif
             if :: I[i].nx == SERVE && I[i].ep > I[ret].ep -> ret = i; ack[I[i].bs] = i; printf("EV inc %d: the takeover has returned\n", i) :: else fi;
             I[i].ph = I[i].nx; I[i].nx = 0 fi }
  /* ---- the claim ---- */
  :: atomic { I[i].ph == CLAIM && I[i].pv == 0 ->
       if
#ifdef DROP_CLAIM
       :: true -> I[i].ver = mver; I[i].ph = CKPT
#else
       :: minc == i -> I[i].ver = mver; I[i].ph = CKPT
       :: minc != i && I[minc].ep >= I[i].ep -> fenced(i)
       :: minc != i && I[minc].ep < I[i].ep -> I[i].pexp = mver; put(i, mup); I[i].ph = CLAIM1
#endif
       fi }
  :: atomic { I[i].ph == CLAIM1 && I[i].pv > 1 ->
       if :: I[i].pv == 2 -> I[i].ver = I[i].pexp + 1; I[i].ph = CKPT :: else -> I[i].ph = CLAIM fi;
       I[i].pv = 0; I[i].pexp = 0; I[i].pup = 0 }
  /* ---- the first checkpoint, the second round, doors open ---- */
  :: atomic { I[i].ph == CKPT -> submitframe(i, CKPT1) }
  :: atomic { I[i].ph == CKPT1 && I[i].fs > 1 ->
       if :: I[i].fs == 3 -> I[i].fs = 0; I[i].fpos = 0; fenced(i)
          :: else -> I[i].fs = 0; I[i].fpos = 0; I[i].dur = I[i].head;
#ifdef DROP_ROUND2
             if :: I[i].ep > I[ret].ep -> ret = i :: else fi; I[i].ph = SERVE
#else
#ifdef DROP_BOUNDARY
             I[i].ph = SERVE
#else
             I[i].du = I[i].dur; round(i, SERVE)
#endif
#endif
       fi }
  /* ---- serving ---- */
  :: atomic { I[i].ph == SERVE && I[i].fs == 0 && I[i].head < MAXP && I[i].head - I[i].trim < CAP -> submitframe(i, SERVE) }
  :: atomic { I[i].ph == SERVE && I[i].fs == 2 -> I[i].fs = 0; I[i].fpos = 0; acks(i) }
  :: atomic { I[i].ph == SERVE && I[i].fs == 3 -> I[i].fs = 0; I[i].fpos = 0; fenced(i) }
  :: atomic { I[i].ph == SERVE && beats > 0 && I[i].fs == 0 && I[i].ss == 0 -> beats--; I[i].du = I[i].dur; round(i, SERVE) }
#ifdef TRIM
  :: atomic { I[i].ph == SERVE && I[i].fs == 0 && I[i].ss == 0 && I[i].dur > I[i].bs && I[i].dur - 1 > I[i].trim && MAYREUSE(i) -> I[i].ntrim = I[i].dur - 1; I[i].ntinc = (I[i].ntrim == I[i].bs -> I[i].pinc : i); I[i].du = I[i].dur; I[i].mask = 1 << i; round(i, SERVE) }
#endif
  :: atomic { I[i].ph == SERVE && commits > 0 && I[i].pv == 0 && I[i].dur > mup -> commits--; I[i].pexp = I[i].ver; put(i, I[i].dur) }
  :: atomic { I[i].ph == SERVE && I[i].pv == 2 -> I[i].ver = I[i].pexp + 1; I[i].pv = 0; I[i].pexp = 0; I[i].pup = 0 }
  :: atomic { I[i].ph == SERVE && I[i].pv == 3 -> /* changed, or the answer was lost: read it */
       if
#ifdef DROP_HIGHER
       :: true -> I[i].ver = mver; I[i].pexp = mver; I[i].pv = 1
#else
       :: minc == i || I[minc].ep < I[i].ep -> I[i].ver = mver; I[i].pv = 0; I[i].pexp = 0; I[i].pup = 0
       :: minc != i && I[minc].ep >= I[i].ep -> I[i].pv = 0; I[i].pexp = 0; I[i].pup = 0; fenced(i)
#endif
       fi }
#ifdef DROP_KEEP
  :: atomic { I[i].ph == SERVE && I[i].fs == 0 && I[i].ss == 0 && holder == i -> printf("EV inc %d closes and releases\n", i); holder = NO; die(i) }
#endif
  od
}

proctype Reset() {
end:
  do
  :: atomic { resets > 0 && holder == 0 -> resets--; holder = NO; printf("EV the target was reset: nobody holds\n") }
  od
}

init {
  atomic {
    d_step {
      q = 0; do :: q < MAXP -> ack[q] = NO; cur[q] = NO; q++ :: else -> break od;
      q = 0; do :: q < CAP -> dpos[q] = NO; dinc[q] = NO; q++ :: else -> break od; q = 0;
      S[0].ok = 1; S[0].inc = NO; S[0].seq = 1; S[0].tinc = NO; S[1].ok = 1; S[1].inc = NO; S[1].seq = 1; S[1].tinc = NO;
      S[2].ok = 1; S[2].inc = 0; S[2].seq = 3; S[2].mask = 1; S[2].du = 1; S[2].tinc = NO;
      S[3].ok = 1; S[3].inc = 0; S[3].seq = 3; S[3].mask = 1; S[3].du = 1; S[3].tinc = NO;
      dpos[0] = 0; dinc[0] = 0;
      I[0].ph = SERVE; I[0].ep = 1; I[0].pinc = NO; I[0].mask = 1; I[0].tinc = NO; I[0].ntinc = NO; I[0].du = 1; I[0].head = 1; I[0].dur = 1;
      I[0].set = 1; I[0].seq = 3; I[0].ver = 1; I[0].sub[0] = 0; ack[0] = 0; cur[0] = 0
    };
    run P(0); run P(1); run P(2);
#if NI > 3
    run P(3);
#endif
#if NI > 4
    run P(4);
#endif
#if RESETS > 0
    run Reset()
#endif
  }
}
