package store

import (
	"context"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

const (
	// credentialsRenewal is how long before their end credentials are renewed.
	credentialsRenewal = 5 * time.Minute
	// credentialsPause is between two tries to renew while the old ones still hold, and
	// between two looks for others after the server refused what there is.
	credentialsPause = 10 * time.Second
	// credentialsTimeout is for whatever gives credentials: a process, STS, a local agent.
	credentialsTimeout = 15 * time.Second
)

// keeper caches credentials. Unlike the SDK's cache it uses them to their very end when
// they cannot be renewed, and looks for them anew (in files that somebody has corrected
// meanwhile, say) after the server refused them.
type keeper struct {
	// find walks the SDK's chain from its beginning.
	find     func(context.Context) (aws.CredentialsProvider, error)
	counters *Counters

	mu       sync.Mutex
	provider aws.CredentialsProvider
	current  aws.Credentials
	asked    time.Time // when current or its failed renewal was asked for
	found    time.Time // when find was last called
	refused  bool
}

// Retrieve gives credentials that hold now.
func (k *keeper) Retrieve(ctx context.Context) (aws.Credentials, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	lookAgain := k.refused && now.Sub(k.found) >= credentialsPause
	have := k.current.HasKeys() && (!k.current.CanExpire || now.Before(k.current.Expires))
	renew := k.current.CanExpire && now.After(k.current.Expires.Add(-credentialsRenewal)) && now.Sub(k.asked) >= credentialsPause
	if have && !lookAgain && !renew {
		return k.current, nil
	}
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	defer cancel()
	k.asked = now
	fresh, err := k.renew(ctx, now, lookAgain)
	if err != nil {
		if have {
			return k.current, nil
		}
		return aws.Credentials{}, err
	}
	k.current = fresh
	var expires int64
	if fresh.CanExpire {
		expires = fresh.Expires.Unix()
	}
	k.counters.expiresUnix.Store(expires)
	return fresh, nil
}

func (k *keeper) renew(ctx context.Context, now time.Time, lookAgain bool) (aws.Credentials, error) {
	if k.provider == nil || lookAgain {
		provider, err := k.find(ctx)
		if err != nil {
			return aws.Credentials{}, err
		}
		k.provider, k.found, k.refused = provider, now, false
	}
	if cache, ok := k.provider.(*aws.CredentialsCache); ok {
		cache.Invalidate() // this is the cache
	}
	return k.provider.Retrieve(ctx)
}

// refuse says that the server did not accept the current credentials, and whether there
// are others by now.
func (k *keeper) refuse(ctx context.Context) bool {
	k.mu.Lock()
	old := k.current
	k.refused = true
	k.mu.Unlock()
	fresh, err := k.Retrieve(ctx)
	return err == nil && (fresh.AccessKeyID != old.AccessKeyID || fresh.SecretAccessKey != old.SecretAccessKey ||
		fresh.SessionToken != old.SessionToken)
}
