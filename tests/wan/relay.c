/* Joins two tun devices with a rate, a delay and a loss: relay CONF NETNS_A NETNS_B */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { VH = sizeof(struct virtio_net_hdr), L2 = 14, BUF = VH + 65536, TICK = 250000 /* ns */ };

struct packet { struct packet *next; int64_t due; int len; uint8_t data[]; };
struct way {
    int in, out;
    struct packet *head, *tail;
    int64_t idle_at;                        /* when the wire has sent all that waits */
    uint64_t rng, packets, bytes, lost, overflow;
};

static struct way ways[2];
static double rate;                         /* bit/s, 0: no limit */
static int64_t delay, queue_max;            /* one way, ns; bytes waiting for the wire */
static uint64_t loss;                       /* of 2^32 */
static int cut;                             /* 1: drop everything */
static volatile sig_atomic_t reload = 1, stop;

static void on_signal(int s) { if (s == SIGHUP) reload = 1; else stop = 1; }

static int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void configure(const char *path)
{
    double ms, percent, mib;
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%lf %lf %lf %lf %d", &rate, &ms, &percent, &mib, &cut) != 5)
        exit((fprintf(stderr, "relay: bad %s\n", path), 1));
    fclose(f);
    rate *= 1e6;
    delay = ms * 1e6;
    loss = percent / 100 * 4294967296.0;
    queue_max = mib * 1048576;
}

static int unlucky(struct way *w)           /* xorshift64* */
{
    if (!loss) return 0;
    w->rng ^= w->rng >> 12; w->rng ^= w->rng << 25; w->rng ^= w->rng >> 27;
    return (w->rng * 2685821657736338717ULL) >> 32 < loss;
}

static uint32_t sum(const uint8_t *p, int n, uint32_t s)
{
    for (; n > 1; n -= 2, p += 2) s += p[0] << 8 | p[1];
    while (s >> 16) s = (s & 0xffff) + (s >> 16);
    return s;
}

static void put16(uint8_t *p, unsigned v) { p[0] = v >> 8; p[1] = v; }

/* Makes the headers of a part of a TSO packet right: segments [from, to) of all */
static void fix_part(uint8_t *d, int size, int ihl, int head, int mss, int from, int to, int all)
{
    struct virtio_net_hdr *v = (void *)d;
    uint8_t *ip = d + VH, *tcp = ip + ihl;
    uint32_t seq;
    memcpy(&seq, tcp + 4, 4);
    seq = htonl(ntohl(seq) + from * mss);
    memcpy(tcp + 4, &seq, 4);
    if (to < all) tcp[13] &= ~(0x01 | 0x08);                      /* FIN, PSH: only on the last */
    put16(ip + 2, size);
    put16(ip + 4, (ip[4] << 8 | ip[5]) + from);
    put16(ip + 10, 0);
    put16(ip + 10, ~sum(ip, ihl, 0));
    put16(tcp + 16, sum(ip + 12, 8, 6 + size - ihl));             /* pseudo header, as the kernel does */
    if (size - head <= mss) { v->gso_type = VIRTIO_NET_HDR_GSO_NONE; v->gso_size = 0; }
}

static void admit(struct way *w, const uint8_t *buf, int len, int64_t now)
{
    const struct virtio_net_hdr *v = (const void *)buf;
    const uint8_t *ip = buf + VH;
    int ihl = 0, head = 0, all = 1, mss = len - VH;
    if (v->gso_type != VIRTIO_NET_HDR_GSO_NONE) {
        ihl = (ip[0] & 15) * 4;
        head = ihl + (ip[ihl + 12] >> 4) * 4;
        mss = v->gso_size;
        all = (len - VH - head + mss - 1) / mss;
    }
    for (int from = 0, to; from < all; from = to + 1) {
        for (to = from; to < all && !unlucky(w) && !cut; to++) ;  /* segment `to` is lost, or the end */
        if (to < all) w->lost++;
        if (to == from) continue;
        int skip = from * mss, end = to < all ? to * mss : len - VH - head;
        int size = head + end - skip, wire = size + (to - from) * L2 + (to - from - 1) * head;
        int64_t start = w->idle_at > now ? w->idle_at : now;
        if (rate && (start - now) * rate / 8e9 + wire > queue_max) { w->overflow += to - from; continue; }
        w->idle_at = rate ? start + (int64_t)(wire * 8e9 / rate) : now;
        struct packet *p = malloc(sizeof *p + VH + size);
        if (!p) continue;
        memcpy(p->data, buf, VH + head);
        memcpy(p->data + VH + head, ip + head + skip, end - skip);
        if (to - from < all) fix_part(p->data, size, ihl, head, mss, from, to, all);
        p->next = NULL; p->len = VH + size; p->due = w->idle_at + delay;
        if (w->head) w->tail->next = p; else w->head = p;
        w->tail = p;
        w->packets += to - from; w->bytes += wire;
    }
}

static int open_tun(const char *netns)
{
    char path[256];
    struct ifreq ifr = { .ifr_name = "wan0", .ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR };
    snprintf(path, sizeof path, "/run/netns/%s", netns);
    int ns = open(path, O_RDONLY), fd = -1;
    if (ns < 0 || setns(ns, CLONE_NEWNET) || (fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK)) < 0
        || ioctl(fd, TUNSETIFF, &ifr) || ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4))
        exit((fprintf(stderr, "relay: %s: %s\n", netns, strerror(errno)), 1));
    close(ns);
    return fd;
}

int main(int argc, char **argv)
{
    static uint8_t buf[BUF];
    struct pollfd fds[2];
    sigset_t caught, none;
    if (argc != 4) return 2;
    sigemptyset(&none); sigemptyset(&caught);
    sigaddset(&caught, SIGHUP); sigaddset(&caught, SIGTERM);
    sigprocmask(SIG_BLOCK, &caught, NULL);
    signal(SIGHUP, on_signal); signal(SIGTERM, on_signal);
    prctl(PR_SET_TIMERSLACK, 1);
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ 1 }); /* a wire does not wait for busy hosts */
    for (int i = 0; i < 2; i++) {
        ways[i].in = ways[!i].out = open_tun(argv[2 + i]);
        ways[i].rng = 0x9e3779b97f4a7c15ULL + i;                  /* the same losses in every run */
        fds[i] = (struct pollfd){ ways[i].in, POLLIN, 0 };
    }
    puts("ready"); fflush(stdout);
    while (!stop) {
        if (reload) { reload = 0; configure(argv[1]); }
        int64_t now = clock_ns(), next = INT64_MAX;
        for (int i = 0; i < 2; i++) {
            struct way *w = &ways[i];
            for (struct packet *p; (p = w->head) && p->due <= now; free(p)) {
                w->head = p->next;
                if (write(w->out, p->data, p->len) < 0 && errno == EBADFD) stop = 1;
            }
            if (w->head && w->head->due < next) next = w->head->due;
        }
        /* With packets under way, sleep whole ticks: a wake-up costs more than a packet does */
        struct timespec t = { 0, TICK };
        if (next == INT64_MAX) ppoll(fds, 2, NULL, &none); else ppoll(NULL, 0, &t, &none);
        now = clock_ns();
        for (int i = 0; i < 2; i++)
            for (int n = 0, len; n < 64 && (len = read(ways[i].in, buf, BUF)) != 0; n++) {
                if (len < 0) { if (errno == EBADFD) stop = 1; break; }
                if (len > VH) admit(&ways[i], buf, len, now);
            }
    }
    for (int i = 0; i < 2; i++)
        fprintf(stderr, "relay: from %s: %llu packets, %llu bytes, lost %llu, overflowed %llu\n", argv[2 + i],
                (unsigned long long)ways[i].packets, (unsigned long long)ways[i].bytes,
                (unsigned long long)ways[i].lost, (unsigned long long)ways[i].overflow);
    return 0;
}
