/* The manifest alone (upload/claim.go, upload/commit.go): conditional puts whose answers may be lost, and
   which may still land after that; an owner that uploads and commits, and the next one, that claims it at any time.

   ATTEMPTS puts of each owner, 2 to 4. Content is what has been uploaded, as a number. DROP_…: see README.md. */
#ifndef ATTEMPTS
#define ATTEMPTS 3
#endif
#define ALL (2*ATTEMPTS)
typedef Put { byte st; byte expect; byte attempt; byte content };  /* 0 none 1 in flight 2 done 3 changed 4 done, answer lost */
Put P[ALL];                                  /* the first half is owner 0's, the other owner 1's */
byte version = 1, owner, attempt = 1, content;   /* the manifest; the epoch of an owner is its number */
bit claimed;
byte trimmed;                                /* what an owner took for committed, and trimmed */

inline land(j) {
#ifdef DROP_CONDITION
  if :: true ->
#else
  if :: version == P[j].expect ->
#endif
        assert(!(claimed && j < ATTEMPTS));                  /* P6 */
        version++; owner = j / ATTEMPTS; attempt = P[j].attempt; content = P[j].content;
        printf("EV   put %d lands: owner %d attempt %d content %d\n", j, owner, attempt, content);
        assert(content >= trimmed);                          /* P5: what was trimmed is in the manifest */
        if :: P[j].st = 2 :: P[j].st = 4 fi
     :: else -> P[j].st = 3
  fi }

#define LANDS(j) :: atomic { P[j].st == 1 -> land(j) }

active proctype Store() {
end:
  do
  LANDS(0) LANDS(1) LANDS(2) LANDS(3)
#if ATTEMPTS > 2
  LANDS(4) LANDS(5)
#endif
#if ATTEMPTS > 3
  LANDS(6) LANDS(7)
#endif
  od
}

proctype Owner(byte me) {
  byte known, top, mine, n;
  bit mayput, ok;
  if
  :: me == 0 -> known = 1; top = 1; mayput = 1                /* it has claimed long ago */
  :: else -> skip
  fi;
  do
  :: n == ATTEMPTS -> break
  :: n < ATTEMPTS ->
     atomic {
       if
       :: !mayput -> /* a claim reads first */
          known = version;
          if :: owner == me -> mayput = 1; claimed = 1; top = attempt; mine = content; printf("EV owner %d has claimed\n", me)
             :: else -> mine = content
          fi
       :: else -> mine++                                     /* more was uploaded */
       fi;
#ifdef DROP_UNIQUE
       top = (owner == me -> attempt + 1 : 1);
#else
       top++;
#endif
       P[me*ATTEMPTS+n].expect = known; P[me*ATTEMPTS+n].attempt = top; P[me*ATTEMPTS+n].content = mine; P[me*ATTEMPTS+n].st = 1;
       printf("EV owner %d puts attempt %d content %d\n", me, top, mine) };
     ok = 0;
     if
     :: atomic { P[me*ATTEMPTS+n].st == 2 -> ok = 1; known = P[me*ATTEMPTS+n].expect + 1 }
     :: atomic { P[me*ATTEMPTS+n].st != 2 -> /* changed, or no answer: read it */
          printf("EV owner %d has no answer to attempt %d and reads owner %d attempt %d\n", me, top, owner, attempt);
#ifdef DROP_READ
          ok = 1; known = version
#else
          if
          :: owner == me && attempt == top -> ok = 1; known = version
#ifdef DROP_OLDER
          :: owner == me && attempt < top -> ok = 1; known = version
#else
          :: owner == me && attempt < top -> known = version
#endif
          :: owner < me -> known = version
          :: else -> break                                   /* fenced */
          fi
#endif
        }
     fi;
     atomic {
       if
       :: ok && mayput -> assert(content >= mine || owner != me); trimmed = (mine > trimmed -> mine : trimmed);
          printf("EV owner %d takes content %d for committed\n", me, mine); assert(content >= trimmed)  /* P5 */
       :: ok && !mayput -> mayput = 1; claimed = 1; printf("EV owner %d has claimed\n", me)
       :: else
       fi };
     n++
  od
}
init { atomic { run Owner(0); run Owner(1) } }
