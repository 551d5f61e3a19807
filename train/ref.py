"""Plain reference of the six architectures; checks goldens.json without transformers.
Usage: ref.py FOLDER... (default: the folder of the Go tests)"""
import json, struct, math, numpy as np, torch, sys
import torch.nn.functional as F
def load(p):
    b=open(p,'rb').read(); n=struct.unpack('<Q',b[:8])[0]; h=json.loads(b[8:8+n]); h.pop('__metadata__',None); d={}
    for k,v in h.items():
        s,e=v['data_offsets']; r=b[8+n+s:8+n+e]
        a=(np.frombuffer(r,np.uint16).astype(np.uint32)<<16).view(np.float32) if v['dtype']=='BF16' else np.frombuffer(r,np.float32)
        d[k]=torch.from_numpy(a.reshape(v['shape']).copy())
    return d
def rms(x,w,eps): return x*torch.rsqrt(x.pow(2).mean(-1,keepdim=True)+eps)*w
def invfreq(c,dim):
    th=c['rope_theta']; f=1.0/th**(torch.arange(0,dim,2).float()/dim); rs=c.get('rope_scaling') or {}
    t=rs.get('rope_type',rs.get('type'))
    if t=='llama3':
        o=rs['original_max_position_embeddings']; lo=o/rs['low_freq_factor']; hi=o/rs['high_freq_factor']; out=[]
        for x in f.tolist():
            wl=2*math.pi/x
            if wl<hi: out.append(x)
            elif wl>lo: out.append(x/rs['factor'])
            else:
                s=(o/wl-rs['low_freq_factor'])/(rs['high_freq_factor']-rs['low_freq_factor']); out.append((1-s)*x/rs['factor']+s*x)
        return torch.tensor(out),1.0
    if t=='yarn':
        o=rs['original_max_position_embeddings']
        fd=lambda r: dim*math.log(o/(r*2*math.pi))/(2*math.log(th))
        lo=max(math.floor(fd(rs['beta_fast'])),0); hi=min(math.ceil(fd(rs['beta_slow'])),dim-1)
        if lo==hi: hi+=0.001
        ramp=((torch.arange(dim//2).float()-lo)/(hi-lo)).clamp(0,1)   # 0: keep (extrapolate), 1: interpolate
        ms=lambda s,m: 1.0 if s<=1 else 0.1*m*math.log(s)+1
        return f/rs['factor']*ramp+f*(1-ramp), ms(rs['factor'],rs['mscale'])/ms(rs['factor'],rs['mscale_all_dim'])
    return f,1.0
def rope(x,f,sc):  # x [T,H,d], halves
    T=x.shape[0]; a=torch.arange(T).float()[:,None]*f[None]; c,s=(a.cos()*sc)[:,None],(a.sin()*sc)[:,None]
    h=x.shape[-1]//2; u,v=x[...,:h],x[...,h:]; return torch.cat([u*c-v*s,v*c+u*s],-1)
def ffn(d,p,x,g='gate_proj',u='up_proj',w='down_proj'): return F.linear(F.silu(F.linear(x,d[p+g+'.weight']))*F.linear(x,d[p+u+'.weight']),d[p+w+'.weight'])
def fwd(c,d,ids):
    a=c['model_type']; x=d['model.embed_tokens.weight'][torch.tensor(ids)]; T=len(ids); H=c['num_attention_heads']; KV=c['num_key_value_heads']; eps=c['rms_norm_eps']
    i=torch.arange(T); m=i[None]<=i[:,None]
    if a=='mistral' and c.get('sliding_window'): m=m&(i[None]>i[:,None]-c['sliding_window'])
    for l in range(c['num_hidden_layers']):
        p=f'model.layers.{l}.'; h=rms(x,d[p+'input_layernorm.weight'],eps); s=p+'self_attn.'
        lin=lambda n,z: F.linear(z,d[s+n+'.weight'],d.get(s+n+'.bias'))
        if a=='deepseek_v3':
            no,ro,vd,kl=c['qk_nope_head_dim'],c['qk_rope_head_dim'],c['v_head_dim'],c['kv_lora_rank']
            q=lin('q_b_proj',rms(lin('q_a_proj',h),d[s+'q_a_layernorm.weight'],1e-6)).view(T,H,no+ro)
            ckv=lin('kv_a_proj_with_mqa',h); kr=ckv[:,kl:].view(T,1,ro)
            kv=lin('kv_b_proj',rms(ckv[:,:kl],d[s+'kv_a_layernorm.weight'],1e-6)).view(T,H,no+vd)
            f,sc=invfreq(c,ro); de=lambda z: torch.cat([z[...,0::2],z[...,1::2]],-1)   # interleaved pairs -> halves
            q=torch.cat([q[...,:no],rope(de(q[...,no:]),f,sc)],-1); kr=rope(de(kr),f,sc)
            k=torch.cat([kv[...,:no],kr.expand(T,H,ro)],-1); v=kv[...,no:]
            ms=0.1*c['rope_scaling']['mscale_all_dim']*math.log(c['rope_scaling']['factor'])+1
            scale=(no+ro)**-0.5*ms*ms
        else:
            hd=c.get('head_dim') or c['hidden_size']//H
            q=lin('q_proj',h).view(T,H,hd);k=lin('k_proj',h).view(T,KV,hd);v=lin('v_proj',h).view(T,KV,hd)
            if a=='qwen3': q=rms(q,d[s+'q_norm.weight'],eps);k=rms(k,d[s+'k_norm.weight'],eps)
            f,sc=invfreq(c,hd);q=rope(q,f,sc);k=rope(k,f,sc);scale=hd**-0.5
            k=k.repeat_interleave(H//KV,1);v=v.repeat_interleave(H//KV,1)
        S=torch.einsum('qhd,khd->hqk',q,k)*scale; S=S.masked_fill(~m,float('-inf'))
        o=torch.einsum('hqk,khd->qhd',torch.softmax(S,-1),v).reshape(T,-1); x=x+lin('o_proj',o)
        h=rms(x,d[p+'post_attention_layernorm.weight'],eps)
        if a=='mixtral':
            q=p+'block_sparse_moe.'; w=torch.softmax(F.linear(h,d[q+'gate.weight']),-1); tv,ti=w.topk(2,-1); tv=tv/tv.sum(-1,keepdim=True); y=torch.zeros_like(h)
            for e in range(c['num_local_experts']):
                r=(tv*(ti==e)).sum(-1); y=y+r[:,None]*ffn(d,q+f'experts.{e}.',h,'w1','w3','w2')
        elif a=='deepseek_v3' and l>=c['first_k_dense_replace']:
            q=p+'mlp.'; E=c['n_routed_experts']; sg=torch.sigmoid(F.linear(h,d[q+'gate.weight'])); ch=sg+d[q+'gate.e_score_correction_bias']
            g=ch.view(T,c['n_group'],-1).topk(2,-1).values.sum(-1); gi=g.topk(c['topk_group'],-1).indices
            gm=torch.zeros_like(g).scatter_(1,gi,1).bool()[:,:,None].expand(T,c['n_group'],E//c['n_group']).reshape(T,E)
            ti=ch.masked_fill(~gm,float('-inf')).topk(c['num_experts_per_tok'],-1).indices
            tv=sg.gather(1,ti); tv=tv/(tv.sum(-1,keepdim=True)+1e-20)*c['routed_scaling_factor']; y=ffn(d,q+'shared_experts.',h)
            for e in range(E): y=y+(tv*(ti==e)).sum(-1)[:,None]*ffn(d,q+f'experts.{e}.',h)
        else: y=ffn(d,p+'mlp.',h)
        x=x+y
    return F.linear(rms(x,d['model.norm.weight'],eps),d.get('lm_head.weight',d['model.embed_tokens.weight']))
with torch.no_grad():
    for P in sys.argv[1:] or ['../internal/engine/model/testdata/llama']:
        c=json.load(open(P+'/config.json')); d=load(P+'/model.safetensors'); g=json.load(open(P+'/goldens.json')); a=c['model_type']
        e=[]
        for it in g['items']:
            lg=fwd(c,d,it['prompt'])[-1]; r=torch.tensor(it['logits']); e.append(((lg-r).abs().max()/r.abs().max()).item())
        it=g['items'][-1]; seq=it['prompt']+it['greedy']; lg=fwd(c,d,seq)[len(it['prompt'])-1:-1]; ok=(lg.argmax(-1).tolist()==it['greedy'])
        print(a,'max relative logit error %.1e'%max(e),'greedy of the longest prompt reproduced',ok, ['%.0e'%x for x in e])
